"""The command line before a broker answers: help, wrong usage, and no broker there."""

import re
import signal
import sys
from pathlib import Path

import pytest

from tailrace.cli.lib.parser import parse
from tailrace.cli.lib.termination import EXIT_TERMINATED
from tailrace.cli.lib.variables import BROKER_SETTINGS, check_variables
from tailrace.cli.main import ENVIRONMENT, VERBS, main
from tailrace_broker.app.settings import Settings
from tests.support.broker.fixtures import free_port_base

STARTS = "--from, --from-beginning, --at, --since and --last"
TOPIC_VERBS = (
    "tailrace topic needs one of create, list, describe, alter, delete, restore or accept-loss"
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TAILRACE_URL", "TAILRACE_TOKEN", "TAILRACE_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `tailrace` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def assert_failed(capsys: pytest.CaptureFixture[str], error: str) -> None:
    """One sentence on stderr that matches, nothing on stdout."""
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(f"error: .*{error}.*\n", output.err), output.err


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert run(monkeypatch, *verb.split(), "--help") == 0

    reported = capsys.readouterr().out
    assert f"usage: tailrace {verb} " in reported
    examples = reported.partition("examples:\n")[2].splitlines()
    assert examples
    assert all(f"tailrace {verb}" in example for example in examples)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_command_alone_shows_its_verbs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(monkeypatch, *arguments) == 0

    reported = capsys.readouterr().out
    assert all(f"\n  {verb} " in reported for verb in VERBS)
    assert "examples:" in reported


@pytest.mark.parametrize("first", ["topic", "group", "ring", "metadata", "context"])
@pytest.mark.parametrize("words", ["{} --help", "{} -h", "help {}"])
def test_the_first_word_of_verbs_shows_those_that_begin_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: str, words: str
) -> None:
    assert run(monkeypatch, *words.format(first).split()) == 0

    reported = capsys.readouterr().out.splitlines()
    family = {name: verb.help for name, verb in VERBS.items() if name.startswith(f"{first} ")}
    assert reported[0] == f"usage: tailrace {first} VERB ..."
    assert [re.split("  +", line.strip()) for line in reported[3:]] == [
        [name, sentence] for name, sentence in family.items()
    ]


@pytest.mark.parametrize(
    ("words", "usage"),
    [("help", "VERB"), ("help --help", "VERB"), ("help group list", "group list")],
)
def test_help_is_a_word_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, usage: str
) -> None:
    assert run(monkeypatch, *words.split()) == 0

    assert capsys.readouterr().out.startswith(f"usage: tailrace {usage} ")


def test_the_version_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0

    assert re.fullmatch(r"tailrace \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("produce t --nosuch", 'no option "--nosuch"\\. See: tailrace produce --help'),
        ("consume t --form=1", 'no option "--form"; did you mean --format\\. See:'),
        ("topic create t --slices 8", 'no option "--slices"\\. See: tailrace topic create --help'),
        ("topic create t u", '"u" is one argument too many. See: tailrace topic create --help'),
        ("produce t u -f a.ndjson", "give events or --file, not both"),
        ("nosuch", 'no verb "nosuch"\\. See: tailrace --help'),
        ("statsu", 'no verb "statsu"; did you mean status. See: tailrace --help'),
        ("topic", TOPIC_VERBS),
        ("topic -x", TOPIC_VERBS),
        ("help nosuch", 'no verb "nosuch"\\. See: tailrace --help'),
        ("topic drop", 'tailrace topic has create, .* or accept-loss, and no "drop"'),
        ("dev status", 'tailrace dev has start, and no "status"\\. See: tailrace --help'),
        ("dev status --help", 'tailrace dev has start, and no "status"\\. See:'),
        ("help dev status", 'tailrace dev has start, and no "status"\\. See:'),
        ("produce", "arguments are required: TOPIC. See: tailrace produce --help"),
        ("produce t --key origin", '--key: "origin" is not a field path, like .customer'),
        ("produce t --key", "--key: expected one argument"),
        ("produce t u --key .a --key-separator =", "--key and --key-separator exclude each other"),
        ("produce t u --key-separator=", "--key-separator: it is empty"),
        ("produce t u --header origin", '--header: "origin" is not NAME=VALUE'),
        ("produce t u --header =web", '--header: "=web" is not NAME=VALUE'),
        (
            "produce t u --timestamp 1763716163114",
            r"--timestamp: 1763716163114; it is in microseconds; did you mean 1763716163114000\?",
        ),
        ("produce t u --timestamp 7", '"7" is not a time like 2026-11-21T09:00Z or a date like'),
        ("consume t --at 1764000000000", r"--at: 1764000000000; it is in microseconds; did you me"),
        ("group reset g --to 1764000000", r"--to: 1764000000; it is in microseconds; did you mea"),
        ("group reset g --to 1764", '--to: "1764" is not earliest, .* offsets go to --to-offsets'),
        (
            "produce t u --timestamp noon",
            '--timestamp: "noon" is not a time like 2026-11-21T09:00Z',
        ),
        (
            "produce t --resume next",
            '--resume: "next" is no token that tailrace produce has printed',
        ),
        ("produce \udcff", r'TOPIC: "\\udcff" is not UTF-8'),
        ("consume t --from soon", '--from: "soon" is not earliest, latest, an offset, or -N'),
        (f"consume t --from {'9' * 5_000}", f'--from: "{"9" * 40}…" is not earliest'),
        (f"consume t --partition {'9' * 5_000}", "is not a whole number of 0 or more"),
        ("consume t --max -1", '--max: "-1" is not a whole number of 0 or more'),
        ("consume t --max 1_0", "is not a whole number"),
        ("consume t --last 0", '"0" is not a whole number from 1 to 1000'),
        (
            "consume t --at noon",
            '--at: "noon" is not a time like 2026-11-21T09:00Z or a date like 2026-11-21',
        ),
        ("consume t --at 2026-11-31", '"2026-11-31" is not a time like'),
        ("consume t --since 1", '--since: "1" is not a duration of 1ms or more, like 90s, 1h30m'),
        ("consume t --at 2026-11-21T09:00Z --last 1", f"{STARTS} exclude each other"),
        ("consume t --from-beginning --from latest", f"{STARTS} exclude each other"),
        ("consume t --format %z", '--format: "%z" is none of %t %p %o %T %k %v %h %%'),
        ("consume t --format 100%", '--format: "%" is none of %t'),
        ("consume t --value-only -o json", "--value-only, --format and -o exclude each other"),
        ("consume a b --partition 1", "--partition is of one topic: give its name alone"),
        ("consume a* --partition 1", "--partition is of one topic: give its name alone"),
        ("--url", "--url: expected one argument. See: tailrace --help"),
        ("--url localhost:x status", '--url: "localhost:x" is not a broker\'s URL'),
        ("--url localhost:9250 dump 0.log", 'no option "--url"'),
        ("consume t --last 2 --partition 1", "of one: --partition P --from -2"),
        ("consume t --url localhost/v1", '--url: "localhost/v1" is not a broker\'s URL'),
        ("-o", "-o: expected one argument. See: tailrace --help"),
        ("-o xml topic list", '-o/--output: "xml" is not table, json or yaml'),
        ("consume t --since -1h", '--since: "-1h" is negative; it is how long ago, as 1h. See'),
        ("status --url=", '--url: "" is not a broker\'s URL'),
        (
            "status --url http://127.0.0.1:99999",
            "--url: .*:99999\" is not a broker's URL, like http",
        ),
        ("topic create t --partitions-per-range 257", '"257" is not a whole number from 1 to 256'),
        ("topic alter t", "nothing to change: give at least one of --retention, .*--no-json-check"),
        ("topic create t --retention 7", '--retention: "7" is not a duration from 1m on or none;'),
        ("topic alter t --linger 2m", '--linger: "2m" is not a duration from 0 to 1m;'),
        ("topic alter t --flush-size 1Kb", '--flush-size: "1Kb" is not a size from 4Ki on;'),
        ("topic alter t --durability safe", '--durability: "safe" is not fsync or written'),
        ("topic create t --compression gzip", '--compression: "gzip" is not lz4, zstd or none'),
        ("consume t --group a/b", '--group: "a/b" is not 1 to 249 visible characters'),
        ("consume t --consumer c", "--consumer is a name within a group: give --group too"),
        ("consume t --group g --last 1", "--last and --partition do not go with it"),
        ("consume t --group g --from 7", "--from 7: a group starts at earliest or latest"),
        ("group", "tailrace group needs one of list, describe, reset or delete"),
        ("group describe", "arguments are required: GROUP"),
        ("group reset g", "where to. Give one of --to and --to-offsets"),
        ("group reset g --to latest --to-offsets t:0=1", "one of --to and --to-offsets"),
        ("group reset g --to 12", '--to: "12" is not earliest, latest or a time like 2026'),
        ("group reset g --to-offsets t", '"t" is not a topic with an offset a partition, like'),
        ("group reset g --to-offsets t:0=1,0=2", "is not a topic with an offset a partition"),
        ("group reset g --to-offsets t:0=1 --to-offsets t:1=2", '"t" is given twice'),
        ("group reset g --to-offsets t:0=1 --topic t", "--topic goes with --to;"),
        ("bench --size 31", '--size: "31" is not a size from 32 to 1Mi'),
        ("bench --seconds 0", '--seconds: "0" is not a whole number from 1 to 3600'),
        ("context", "tailrace context needs one of set, list, use or delete"),
        ("context set .a http://a:1", 'NAME: ".a" is not 1 to 63 of'),
        ("context set a localhost/v1", 'URL: "localhost/v1" is not a broker\'s URL'),
        ("context set a https://a:1 --ca-file nosuch", "--ca-file: .*nosuch.*No such file"),
        ("dump notes.txt", '"notes.txt" is not a segment \\(.log\\), its index'),
        ("dump 0.idx --records", "--records is of a segment"),
        ("completion tcsh", 'SHELL: "tcsh" is not bash, zsh or fish'),
        ("dev --brokers 0", '"0" is not a whole number from 1 to 12'),
        ("dev --brokers 3 --port 65520", "--port: 65520 leaves no room for 3 brokers"),
        ("ring found", "arguments are required: --brokers"),
        ("ring accept-loss one --broker 1", 'RANGE: "one" is not a whole number'),
        ("metadata", "tailrace metadata needs a second word: recover. See: tailrace --help"),
        ("metadata recovre", 'tailrace metadata has recover, and no "recovre"'),
        (
            "ring",
            "tailrace ring needs one of status, history, verify, found, plan, grow, shrink, drain "
            "or accept-loss",
        ),
        ("metadata recover --accept-loss=yes", "--accept-loss: it takes no value. See:"),
        ("metadata recover", "add --accept-loss if they are lost for good"),
        ("dev --port 65533", '"65533" is not a whole number from 1 to 65532'),
        ("dev --data=", "--data: a directory's name is needed"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    error: str,
) -> None:
    assert run(monkeypatch, *arguments.split()) == 2

    assert_failed(capsys, error)


def test_a_wrong_url_of_the_environment_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_URL", "localhost:")

    assert run(monkeypatch, "status") == 2

    assert_failed(capsys, 'TAILRACE_URL: "localhost:" is not a broker\'s URL, like http')


@pytest.mark.parametrize("method", ["reconfigure", "write"])
def test_an_interrupt_anywhere_in_the_command_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdout, method, interrupt)

    assert run(monkeypatch, "--version") == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_a_termination_ends_a_verb_as_an_interrupt_does(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    interrupt: "signal._HANDLER",
) -> None:
    def terminate(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(sys.stdout, "write", terminate)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        assert run(monkeypatch, "--version") == EXIT_TERMINATED == 143
    finally:
        signal.signal(signal.SIGINT, before)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "verb",
    [
        "topic list",
        "topic create t",
        "topic describe t",
        "topic alter t --json-check",
        "topic delete t",
        "consume t",
        "consume t -f",
        "consume t --group g",
        "group list",
        "group describe g",
        "group reset g --to earliest",
        "group delete g",
        "bench",
        "topic create t --dry-run",
        "topic delete t --dry-run",
        "topic restore t --dry-run",
        "status",
    ],
)
def test_without_a_broker_a_verb_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    url = f"http://127.0.0.1:{free_port_base()}"

    assert run(monkeypatch, *verb.split(), "--url", url) == 1

    assert_failed(capsys, f"no broker answers at {url} .*tailrace dev")


def test_a_host_that_no_name_can_be_is_no_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "status", "--url", f"http://{'a' * 80}:9250") == 1

    assert_failed(capsys, "no broker answers at http://a+:9250 .*label too long")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("produce t -f nosuch.ndjson", "nosuch.ndjson: No such file or directory"),
        ("produce t -f nosuch/a.gz", "nosuch/a.gz: No such file or directory"),
        ("produce t -f .", r"\.: Is a directory"),
        ("dump nosuch.log", "nosuch.log: No such file or directory"),
        ("dump folder.log", "folder.log: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: str,
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.log").mkdir()

    assert run(monkeypatch, *arguments.split()) == 1

    assert_failed(capsys, error)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("produce t -f a -f b", "-f/--file"),
        ("produce t -f a --file=a", "-f/--file"),
        ("produce t --timestamp 2026-01-01 1 --timestamp 2027-01-01", "--timestamp"),
        ("--url a:1 topic list --url b:1", "--url"),
        ("topic list -o json -o yaml", "-o/--output"),
        ("context set c a:1 --ca-file a --ca-file b", "--ca-file"),
    ],
)
def test_an_option_with_one_value_that_is_given_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, option: str
) -> None:
    assert run(monkeypatch, *words.split()) == 2

    assert_failed(capsys, f"{option}: it is given more than once, and takes one value. See: ")


def test_an_option_that_collects_values_can_be_repeated() -> None:
    words = ["t", "--header", "a=b", "--header", "a=c", "--key", ".k"]
    found = parse("produce", VERBS["produce"], words)

    assert (found["headers"], found["key"]) == ([(b"a", b"b"), (b"a", b"c")], ".k")


@pytest.mark.parametrize("verb", ["produce t 1", "topic list", "dev"])
def test_a_mistyped_variable_ends_a_verb_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.setenv("TAILRACE_ULR", "127.0.0.1:33000")
    assert run(monkeypatch, *verb.split()) == 2

    sentence = "TAILRACE_ULR is no setting of tailrace; did you mean TAILRACE_URL\\? All are in "
    assert_failed(capsys, f"{sentence}docs/cli.md and docs/settings.md")


@pytest.mark.parametrize("words", ["--help", "--version", "produce --help"])
def test_a_mistyped_variable_does_not_keep_help_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.setenv("TAILRACE_ULR", "127.0.0.1:33000")

    assert run(monkeypatch, *words.split()) == 0
    assert "tailrace" in capsys.readouterr().out


def test_variables_of_brokers_of_the_operator_and_of_kubernetes_are_no_mistakes() -> None:
    broker = [f"TAILRACE_{name.upper()}" for name in Settings.model_fields]
    links = ["TAILRACE_SERVICE_HOST", "TAILRACE_PORT_9250_TCP_ADDR", "TAILRACE_OPERATOR_HTTP_PORT"]

    check_variables(dict.fromkeys([*broker, *links, *ENVIRONMENT, "TAIL"], "1"))
    check_variables({"TAILRACE_PORT": "tcp://10.96.0.7:9250", "TAILRACE_ULR": ""})
    assert set(BROKER_SETTINGS) == set(Settings.model_fields)


@pytest.mark.parametrize("url", [["--url", "FREE"], ["--url=FREE"]])
def test_a_url_may_stand_between_the_words_of_a_verb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: list[str]
) -> None:
    free = f"http://127.0.0.1:{free_port_base()}"
    words = [word.replace("FREE", free) for word in url]
    assert run(monkeypatch, "topic", *words, "list") == 1

    assert_failed(capsys, f"no broker answers at {free} ")
