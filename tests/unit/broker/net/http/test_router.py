"""Request lines -> routes and typed parameters."""

from typing import Annotated, ClassVar, Literal

import pytest
from msgspec import Meta

from tailrace_broker.model.errors import (
    InvalidParameterError,
    MethodNotAllowedError,
    PathNotFoundError,
)
from tailrace_broker.net.http.router import Listeners, Match, Parameters, Route, matcher


class ThingParameters(Parameters, frozen=True):
    aliases: ClassVar = {"like": "likeThis"}

    name: str
    count: Annotated[int, Meta(ge=0, le=99)]
    like_this: str | None = None
    level: Annotated[int, Meta(ge=1, le=9)] | None = None
    limit: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 5
    word: Literal["yes", "no"] = "no"
    is_new: bool | None = None
    tag: tuple[str, ...] = ()


def route(method: str, path: str, parameters: type[Parameters] = Parameters) -> Route:
    return Route(method, path, Listeners.PUBLIC, "", (), parameters=parameters)


THING = "/things/{name}/parts/{count}"
ROUTES = [
    route("GET", THING, ThingParameters),
    route("PUT", THING, ThingParameters),
    route("POST", "/things"),
    route("GET", "/"),
]


@pytest.fixture(scope="module")
def match() -> Match:
    return matcher(ROUTES)


def found(match: Match, target: str) -> ThingParameters:
    """The parameters of a target that fits."""
    matched = match(b"GET", target.encode())
    assert matched.route is ROUTES[0]
    assert isinstance(matched.parameters, ThingParameters), matched.parameters
    return matched.parameters


def refusal(match: Match, target: str) -> tuple[str, object]:
    """What is wrong with the parameters of a target whose route there is."""
    error = match(b"GET", target.encode()).parameters
    assert isinstance(error, InvalidParameterError)
    return error.detail, error.members["parameter"]


@pytest.mark.parametrize("name", ["likeThis", "like"])
def test_a_parameter_can_have_another_name(match: Match, name: str) -> None:
    assert found(match, f"/things/a/parts/7?{name}=x").like_this == "x"


def test_a_parameter_under_both_names_is_given_twice(match: Match) -> None:
    refused = refusal(match, "/things/a/parts/7?like=x&likeThis=x")

    assert refused == ("likeThis is given twice", "likeThis")


def test_what_is_left_out_has_its_default(match: Match) -> None:
    assert found(match, "/things/a/parts/7") == ThingParameters(name="a", count=7)
    assert found(match, "/things/a/parts/7?") == ThingParameters(name="a", count=7)
    assert found(match, "/things/a/parts/7?&&") == ThingParameters(name="a", count=7)


def test_what_is_given_has_its_type(match: Match) -> None:
    query = "likeThis=x&level=3&limit=9223372036854775807&word=yes&tag=a&tag=b"
    assert found(match, f"/things/a/parts/0?{query}") == ThingParameters(
        name="a", count=0, like_this="x", level=3, limit=2**63 - 1, word="yes", tag=("a", "b")
    )


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_flag_is_true_or_false(match: Match, text: str, value: bool) -> None:
    assert found(match, f"/things/a/parts/0?isNew={text}").is_new is value


@pytest.mark.parametrize("text", ["", "True", "1", "yes"])
def test_a_flag_is_no_other_word(match: Match, text: str) -> None:
    refused = refusal(match, f"/things/a/parts/0?isNew={text}")

    assert refused == (f"isNew is {text}; it is false or true", "isNew")


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        ("a%20b", "a b"),
        ("a+b", "a b"),
        ("a%2Bb", "a+b"),
        ("%C3%BC", "ü"),
        ("%26%3D%3F", "&=?"),
        ("=", "="),
        ("", ""),
        ("%", "%"),
        ("%zz", "%zz"),
        ("%FF", "\udcff"),
    ],
)
def test_values_are_percent_decoded(match: Match, encoded: str, text: str) -> None:
    assert found(match, f"/things/a/parts/0?likeThis={encoded}").like_this == text


def test_a_plus_is_a_space_in_a_query_alone(match: Match) -> None:
    assert found(match, "/things/a+b/parts/0").name == "a+b"


def test_a_slash_is_part_of_a_name_when_it_is_encoded(match: Match) -> None:
    assert found(match, "/things/a%2Fb/parts/0").name == "a/b"
    assert found(match, "/things/..%2F..%2Fetc/parts/0").name == "../../etc"
    assert found(match, "/things//parts/0").name == ""
    with pytest.raises(PathNotFoundError):
        match(b"GET", b"/things/a/b/parts/0")


@pytest.mark.parametrize(
    "text", ["-1", "100", "x", "", "+1", "1_0", "1.0", " 1", "0x1", "\u0661", "0" * 19 + "1"]
)
def test_a_number_is_digits_within_its_bounds(match: Match, text: str) -> None:
    detail, name = refusal(match, f"/things/a/parts/{text}")

    assert name == "count"
    assert detail.endswith("it is a whole number from 0 to 99")


@pytest.mark.parametrize(
    ("query", "detail", "name"),
    [
        ("word=maybe", "word is maybe; it is no or yes", "word"),
        ("word=", "word is ; it is no or yes", "word"),
        ("level=0", "level is 0; it is a whole number from 1 to 9", "level"),
        ("likeThis=a&likeThis=a", "likeThis is given twice", "likeThis"),
        ("name=b", "name is given twice", "name"),
        (
            "like_this=a",
            'no parameter "like_this"; GET /things/{name}/parts/{count} takes likeThis, level, '
            "limit, word, isNew, tag",
            "like_this",
        ),
        (
            "level=" + "1" * 50,
            f"level is {'1' * 40}…; it is a whole number from 1 to 9",
            "level",
        ),
    ],
)
def test_what_is_wrong_is_named(match: Match, query: str, detail: str, name: str) -> None:
    assert refusal(match, f"/things/a/parts/0?{query}") == (detail, name)


def test_an_unknown_parameter_of_a_path_that_takes_none(match: Match) -> None:
    assert refusal(match, "/?a=1") == ('no parameter "a"; GET / takes none', "a")


def test_what_is_wrong_is_the_same_the_second_time(match: Match) -> None:
    """Short targets are remembered, long ones are not."""
    for padding in ("", "0" * 300):
        target = f"/things/a/parts/0?word=maybe{padding}"
        assert refusal(match, target) == refusal(match, target)
    for name in ("a", "b" * 300):
        for _ in range(2):
            assert found(match, f"/things/{name}/parts/0").name == name


def test_head_is_as_get(match: Match) -> None:
    assert match(b"HEAD", b"/things/a/parts/0").route is ROUTES[0]


def test_another_method_is_reported_those_that_there_are(match: Match) -> None:
    with pytest.raises(MethodNotAllowedError) as reported:
        match(b"DELETE", b"/things/a/parts/x?y")

    assert (reported.value.allowed, reported.value.detail) == (
        "GET, HEAD, PUT",
        "/things/a/parts/x takes GET, HEAD, PUT",
    )


@pytest.mark.parametrize(
    "target", ["/thing", "/things/", "//", "*", "", "things", "/things?/", "/Things", "/things%2F"]
)
def test_a_path_is_exactly_one_of_the_table(match: Match, target: str) -> None:
    with pytest.raises((PathNotFoundError, MethodNotAllowedError)):
        match(b"GET", target.encode())


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://a/things", "/things"),
        ("HTTP://a:1/things", "/things"),
        ("https://user@a/things", "/things"),
        ("http://a", "/"),
    ],
)
def test_scheme_and_authority_are_left_out(match: Match, target: str, path: str) -> None:
    method = b"POST" if path == "/things" else b"GET"
    assert match(method, target.encode()).route.path == path


def test_a_query_is_not_taken_for_a_path(match: Match) -> None:
    assert refusal(match, "http://a?/things")[1] == "/things"
    assert found(match, "/things/a/parts/0?likeThis=http://b/things").like_this == "http://b/things"
