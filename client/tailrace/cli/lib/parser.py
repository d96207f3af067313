"""What a verb is, and how an argument list becomes its call. No verb is known here.

A verb is a table: its parameters make the argument parser, its help, its completion and its part
of docs/cli.md. `argparse` reads the arguments; wrong ones are a `UsageError`.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tailrace.settings.near_names import close_to
from tailrace.settings.quantities import DIGITS_MAX

WIDTH = 100  # of a help text
SHOWN_CHARACTERS_MAX = 40  # of what an error quotes
_LEADING_OPTIONS = ("--url", "-o", "--output")  # of nearly all verbs: they may precede one
_LEADING_WITH_VALUE = ("--url=", "--output=", "-o")
_NEGATIVE = re.compile(r"-\.?[0-9].*")


class UsageError(Exception):
    """The command was called wrongly; says how in one sentence without an end."""


class Parameter(NamedTuple):
    """An argument or an option; `settings` are those of `ArgumentParser.add_argument`.

    `complete`: what a shell may offer: "topic", "group", "context" or "file".
    """

    names: tuple[str, ...]
    help: str
    settings: Mapping[str, Any]
    complete: str

    @property
    def is_option(self) -> bool:
        """Whether it has dashes."""
        return self.names[0].startswith("-")

    @property
    def option_names(self) -> list[str]:
        """As typed, with the opposite of a flag that has one; none of an argument."""
        is_switch = self.settings.get("action") is argparse.BooleanOptionalAction
        opposites = [f"--no-{name[2:]}" for name in self.names if is_switch]
        return [*self.names, *opposites] if self.is_option else []

    @property
    def keyword(self) -> str:
        """The parameter of the verb's function."""
        dest: str | None = self.settings.get("dest")
        return dest or self.names[-1].lstrip("-").replace("-", "_")

    @property
    def takes_value(self) -> bool:
        """Whether a word follows its name."""
        return self.settings.get("action") in (None, "append")


class Verb(NamedTuple):
    """A function with keyword parameters, and what makes them out of words.

    `examples`: whole commands, and what they do; tests run each. `exclusive`: groups of options of
    which at most one is given.
    """

    run: Callable[..., None]
    parameters: tuple[Parameter, ...]
    examples: tuple[str, ...]
    exclusive: tuple[tuple[str, ...], ...] = ()

    @property
    def help(self) -> str:
        """Its first sentence."""
        assert self.run.__doc__
        return self.run.__doc__.partition("\n")[0]


def parameter(*names: str, help: str, complete: str = "", **settings: Any) -> Parameter:
    """One row of a verb's table; an error lists the `choices` when another is given."""
    if "choices" in settings:
        settings["type"] = _one_of(settings["choices"])
    return Parameter(names, help, settings, complete)


def parse(name: str, verb: Verb, words: Sequence[str]) -> Mapping[str, Any]:
    """The keyword arguments of `verb.run`; UsageError. `--help` prints and raises SystemExit."""
    parser = _parser(name, verb)
    # Arguments and options in any order.
    values, rest = parser.parse_known_intermixed_args(_with_negative_values(verb, words))
    if rest:
        parser.error(_surplus(rest[0], verb))
    _check_exclusive(verb, vars(values))
    return vars(values)


def leading_options(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Options before the verb, which are the verb's all the same; and the rest.

    UsageError: one has no value.
    """
    end = 0
    while end < len(words):
        if words[end] in _LEADING_OPTIONS:
            if end + 1 == len(words):
                raise UsageError(f"{words[end]}: expected one argument. See: tailrace --help")
            end += 2
        elif words[end].startswith(_LEADING_WITH_VALUE):
            end += 1
        else:
            break
    return words[:end], words[end:]


def shown(text: str) -> str:
    """What an error quotes of what was typed."""
    is_long = len(text) > SHOWN_CHARACTERS_MAX
    return f'"{text[:SHOWN_CHARACTERS_MAX]}…"' if is_long else f'"{text}"'


# --- types of values ------------------------------------------------------------------------------


def text(word: str) -> str:
    """UTF-8, as all names and keys are."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(word)} is not UTF-8") from None
    return word


def whole_number(first: int, last: int = 2**63 - 1) -> Callable[[str], int]:
    """A type of numbers in [first, last]."""

    def read(word: str) -> int:
        if re.fullmatch(f"[0-9]{{1,{DIGITS_MAX}}}", word) and first <= int(word) <= last:
            return int(word)
        bounds = f"from {first} to {last}" if last < 2**63 - 1 else f"of {first} or more"
        raise argparse.ArgumentTypeError(f"{shown(word)} is not a whole number {bounds}")

    return read


# --- helpers --------------------------------------------------------------------------------------


class _Once(argparse.Action):
    """Stores the value of an option, and refuses another one."""

    is_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if self.is_given:
            raise argparse.ArgumentError(self, "it is given more than once, and takes one value")
        self.is_given = True
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong by an exception."""

    def error(self, message: str) -> NoReturn:
        """In our words, without the library's prefix."""
        message = message.removeprefix("argument ")
        message = re.sub("ignored explicit argument '.*'", "it takes no value", message)
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message}{end} See: {self.prog} --help")


def _parser(name: str, verb: Verb) -> _Parser:
    assert verb.run.__doc__
    parser = _Parser(
        prog=f"tailrace {name}",
        description=_dedented(verb.run.__doc__),
        epilog="\n".join(["examples:", *(f"  {example}" for example in verb.examples)]),
        formatter_class=_format,
        allow_abbrev=False,
    )
    for each in verb.parameters:
        once = {"action": _Once} if each.is_option else {}
        help = each.help.replace("%", "%%")
        parser.add_argument(*each.names, help=help, **{**once, **each.settings})
    return parser


def _with_negative_values(verb: Verb, words: Sequence[str]) -> list[str]:
    """Join "-1h" to the option whose value it is; argparse takes it for an option."""
    takers = {name for each in verb.parameters if each.takes_value for name in each.option_names}
    end = words.index("--") if "--" in words else len(words)
    joined: list[str] = []
    for word in words[:end]:
        if joined and joined[-1] in takers and _NEGATIVE.fullmatch(word):
            is_long = joined[-1].startswith("--")
            joined[-1] += f"={word}" if is_long else word
        else:
            joined.append(word)
    return [*joined, *words[end:]]


def _check_exclusive(verb: Verb, values: Mapping[str, Any]) -> None:
    """UsageError: of a group of options more than one is given."""
    keywords = {name: each.keyword for each in verb.parameters for name in each.names}
    for names in verb.exclusive:
        given = [name for name in names if _is_given(values[keywords[name]])]
        if len(given) > 1:
            *first, last = names
            raise UsageError(f"{', '.join(first)} and {last} exclude each other")


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _format(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, width=WIDTH)


def _dedented(docstring: str) -> str:
    return re.sub(r"(?m)^    ", "", docstring).strip()


def _one_of(words: Sequence[str]) -> Callable[[str], str]:
    def read(word: str) -> str:
        if word in words:
            return word
        *first, last = words
        raise argparse.ArgumentTypeError(f"{shown(word)} is not {', '.join(first)} or {last}")

    return read


def _surplus(word: str, verb: Verb) -> str:
    """A word that no parameter takes."""
    if not word.startswith("-"):
        return f"{shown(word)} is one argument too many"
    options = [option for each in verb.parameters for option in each.option_names]
    names = [option.removeprefix("--") for option in options if option.startswith("--")]
    name = word.partition("=")[0]
    # Without the dashes, in which all are alike.
    return f"no option {shown(name)}{close_to(name.lstrip('-'), names, prefix='--')}"
