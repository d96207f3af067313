"""The command line: one module a verb around `tailrace.sync`.

Charter: standard library and `tailrace` alone. A verb's module imports what it needs inside the
verb, so that `tailrace --help` starts fast. Verbs raise `TailraceError`, `UsageError` or
`SystemExit`; only `main` prints errors and ends the process.
"""

__all__: list[str] = []
