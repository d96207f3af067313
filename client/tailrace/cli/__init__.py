"""The command line: one module a verb around `tailrace.sync`.

Charter: a verb's module imports what it needs inside the verb, so that `tailrace --help` starts
fast. Verbs raise `TailraceError` or `typer.BadParameter`; only `main` prints errors and exits.
"""

__all__: list[str] = []
