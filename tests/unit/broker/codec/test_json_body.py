"""Bodies that do not fit: which field, what it is, what it can be."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from tailrace_broker.codec.json_body import NOT_JSON, UnfitBodyError, decode_body


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a body."""

    size: int | None
    tags: list[str] = []


class Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A field of each kind."""

    name: Annotated[str, Meta(max_length=5)] = ""
    how_often: int = 0
    is_new: bool = False
    to: Annotated[Literal["earliest", "latest"] | None, Meta(description="Where.")] = "latest"
    part: Part | str | None = None
    raw: bytes = b""
    offsets: dict[str, dict[int, Annotated[int, Meta(ge=0, le=9)]]] = {}


def refusal_of(body: str) -> UnfitBodyError:
    with pytest.raises(UnfitBodyError) as caught:
        decode_body(body.encode(), Body)
    return caught.value


def test_a_body_that_fits_is_decoded() -> None:
    assert decode_body(b' {"howOften":3,"part":{"size":null}} ', Body) == Body(
        how_often=3, part=Part(None)
    )


@pytest.mark.parametrize(
    ("body", "path", "detail"),
    [
        ('{"howOften":"4"}', "howOften", "howOften is text; give a whole number"),
        ('{"howOften":1.5}', "howOften", "howOften is a decimal number; give a whole number"),
        ('{"name":null}', "name", "name is null; give text"),
        ('{"name":"123456"}', "name", "name: Expected `str` of length <= 5"),
        ('{"isNew":1}', "isNew", "isNew is a number; give true or false"),
        ('{"raw":[]}', "raw", "raw is a list; give base64 text"),
        ('{"raw":"?"}', "raw", "raw: Invalid base64 encoded string"),
        ('{"to":"newest"}', "to", "to is 'newest'; give earliest or latest"),
        (
            '{"part":true}',
            "part",
            "part is true or false; give text or an object with size, tags or null",
        ),
        ('{"part":{"size":"x"}}', "part.size", "part.size is text; give a whole number or null"),
        ('{"part":{"size":1,"tags":[{}]}}', "part.tags[0]", "part.tags[0] is an object; give text"),
        (
            '{"part":{"size":1,"colour":2}}',
            "part.colour",
            "part.colour is unknown; the fields are size, tags",
        ),
        ('{"part":{}}', "part.size", "part.size is missing"),
        (
            '{"offsets":{"a":{"x":1}}}',
            "offsets[...]",
            "a key inside offsets is not a whole number",
        ),
        (
            '{"offsets":{"a":{"1":-1}}}',
            "offsets[...][...]",
            "offsets[...][...] is too small; give 0 or more",
        ),
        (
            '{"offsets":{"a":{"1":10}}}',
            "offsets[...][...]",
            "offsets[...][...] is too large; give 9 or less",
        ),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_what_it_can_be(
    body: str, path: str, detail: str
) -> None:
    error = refusal_of(body)

    assert (error.path, error.detail, error.byte) == (path, detail, None)


@pytest.mark.parametrize(
    ("body", "byte", "detail"),
    [
        ("[]", None, "the body is a list; give an object with name, howOften, isNew, to, part"),
        ("", None, "the body is empty; give JSON"),
        (" \n", None, "the body is empty; give JSON"),
        ('{"name":', 8, f"{NOT_JSON}the JSON is cut short at byte 8"),
        ('{"name":}', 8, f"{NOT_JSON}invalid character at byte 8"),
        ('{"name":"\\ud800"}', 9, f"{NOT_JSON}\\ud800 is half of a surrogate pair at byte 9"),
        (
            '{"name":"\\ud83d\\ude00\\ud800"}',
            21,
            f"{NOT_JSON}\\ud800 is half of a surrogate pa",
        ),
        ("[" * 100_000, None, "the body is a list"),
        ('{"part":{"x":' + "[" * 100_000, None, "part.x is unknown"),
    ],
)
def test_a_body_that_is_not_such_json_is_named_as_a_whole(
    body: str, byte: int | None, detail: str
) -> None:
    error = refusal_of(body)

    assert error.detail.startswith(detail)
    assert error.byte == byte


def test_of_a_field_that_nobody_knows_the_error_quotes_the_beginning() -> None:
    error = refusal_of('{"%s":1}' % ("x - at `$.to` " * 1000))

    assert error.detail.startswith("x - at `$.to` x - at")
    assert "… is unknown; the fields are name, howOften" in error.detail
    assert len(error.detail) < 200


def test_a_field_of_eighty_characters_is_quoted_as_it_is() -> None:
    name = "x" * 80

    assert refusal_of(f'{{"{name}":1}}').detail.startswith(f"{name} is unknown")
    assert refusal_of(f'{{"{name}x":1}}').detail.startswith(f"{name}… is unknown")
