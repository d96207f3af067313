"""`tailrace completion`: what a shell needs to complete verbs, options and live names.

The scripts call `tailrace __complete LINE`, which prints the words that may come next, one a line;
when it prints none, the shell offers files.
"""

from collections.abc import Callable, Mapping, Sequence

from tailrace.cli.lib.options import OUTPUTS, connect
from tailrace.cli.lib.parser import Parameter, UsageError, Verb, leading_options, parameter
from tailrace.errors import TailraceError

BROKER_TIMEOUT_S = 0.5  # nobody waits longer for a Tab
LIVE_KINDS = ("topic", "group", "context")

Names = Callable[[str, str | None], Sequence[str]]  # kind, URL

SCRIPTS = {
    "bash": """\
_tailrace() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" __complete "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _tailrace tailrace
""",
    "zsh": """\
#compdef tailrace
_tailrace() {
    local -a found
    found=(${(f)"$("${words[1]}" __complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
if [[ "$funcstack[1]" == _tailrace ]]; then _tailrace "$@"; else compdef _tailrace tailrace; fi
""",
    "fish": """\
function __tailrace_complete
    set -l found (tailrace __complete (commandline -cp) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c tailrace -f -a '(__tailrace_complete)'
""",
}


def completion(*, shell: str) -> None:
    """Print the script that completes `tailrace` in a shell."""
    print(SCRIPTS[shell], end="")


def words_after(line: str, verbs: Mapping[str, Verb], names: Names) -> list[str]:
    """What may complete `line`; `names`: of a kind, by the URL on the line."""
    typed = line.split()[1:]
    current = "" if line[-1:].isspace() or not typed else typed.pop()
    candidates = _candidates(typed, current, verbs, names)
    return [word for word in candidates if word.startswith(current)]


def live_names(kind: str, url: str | None) -> list[str]:
    """Those of the broker, or of this user's contexts; none when it does not answer at once."""
    try:
        if kind == "context":
            from tailrace.cli.lib.context_file import load

            return sorted(load().by_name)
        with connect(url, timeout_s=BROKER_TIMEOUT_S) as client:
            if kind == "group":
                return [group.group for group in client.groups()]
            return [topic.name for topic in client.topics()]
    except (TailraceError, UsageError, OSError):
        return []


def _candidates(
    typed: Sequence[str], current: str, verbs: Mapping[str, Verb], names: Names
) -> Sequence[str]:
    try:
        leading, typed = leading_options(typed)
    except UsageError:  # its value comes next
        return [] if typed[-1] == "--url" else OUTPUTS
    for count in (2, 1):
        verb = verbs.get(" ".join(typed[:count]))
        if verb:
            break
    else:
        return _next_words(typed, verbs)
    wanted, values = _read(verb, [*leading, *typed[count:]])
    if wanted is None and current.startswith("-"):
        return [name for each in verb.parameters for name in each.option_names] + ["--help"]
    positional = [each for each in verb.parameters if not each.is_option]
    if wanted is None and positional:
        is_repeatable = positional[-1].settings.get("nargs") == "+"
        index = len(values[""])
        index = min(index, len(positional) - 1) if is_repeatable else index
        wanted = positional[index] if index < len(positional) else None
    if wanted is None:
        return []
    if wanted.complete in LIVE_KINDS:
        return names(wanted.complete, next(iter(values.get("--url", [])), None))
    return list(wanted.settings.get("choices", ()))


def _next_words(typed: Sequence[str], verbs: Mapping[str, Verb]) -> list[str]:
    """Of the names of verbs, behind those that are typed."""
    names = [name.split() for name in verbs]
    fitting = [name for name in names if name[: len(typed)] == typed and len(name) > len(typed)]
    return list(dict.fromkeys(name[len(typed)] for name in fitting))


def _read(verb: Verb, typed: Sequence[str]) -> tuple[Parameter | None, dict[str, list[str]]]:
    """The option whose value comes next, and the values so far by name; "": of arguments."""
    options = {name: each for each in verb.parameters for name in each.option_names}
    values: dict[str, list[str]] = {"": []}
    name = ""
    for word in typed:
        if name:
            values.setdefault(name, []).append(word)
            name = ""
        elif word in options:
            name = word if options[word].takes_value else ""
        elif not word.startswith("-"):
            values[""].append(word)
    return options.get(name), values


VERB = Verb(
    completion,
    (parameter("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS)),),
    ("tailrace completion bash > ~/.local/share/bash-completion/completions/tailrace",),
)
