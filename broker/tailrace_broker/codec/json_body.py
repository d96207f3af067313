"""A JSON body -> a struct, or one sentence: which field, what it is, and what it can be."""

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec import inspect

from tailrace_broker.codec.json_syntax import is_blank, syntax_fault

T = TypeVar("T", bound=msgspec.Struct)

# How msgspec says what does not fit, and where.
_AT = re.compile(r"(.*) - at (`key` in )?`\$\.?([^`]*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `(.*)`| (>=|<=) (\S+))")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_STEP = re.compile(r"\[[^]]*\]|[^.\[]+")
_NAMES = {
    "int": "a number",
    "float": "a decimal number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "bytes": "base64 text",
}
_WANTED_NAMES = _NAMES | {"int": "a whole number"}
_BOUNDS = {">=": ("too small", "or more"), "<=": ("too large", "or less")}
_QUOTED_MAX = 80
NOT_JSON = "the body is not JSON: "  # in front of why


class UnfitBodyError(ValueError):
    """A body that is not what a request takes.

    `path` is the field that does not fit, "" the body as a whole; `byte` is where the body stops
    being JSON, None when it is JSON.
    """

    def __init__(self, detail: str, *, path: str = "", byte: int | None = None) -> None:
        """Remember the path of the value."""
        super().__init__(detail)
        self.detail = detail
        self.path = path
        self.byte = byte


def decode_body(body: bytes | bytearray, kind: type[T]) -> T:
    """Read a body. UnfitBodyError."""
    try:
        body.isascii() or body.decode()
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError as error:
        raise UnfitBodyError(
            f"the body is not UTF-8 at byte {error.start}", byte=error.start
        ) from error
    except RecursionError as error:
        raise UnfitBodyError("the body is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise _misfit(str(error), kind) from error
    except msgspec.DecodeError as error:
        if is_blank(body):
            raise UnfitBodyError("the body is empty; give JSON") from error
        fault = syntax_fault(body, str(error))
        raise UnfitBodyError(
            f"{NOT_JSON}{fault.reason} at byte {fault.byte}", byte=fault.byte
        ) from error


def _misfit(message: str, kind: type[msgspec.Struct]) -> UnfitBodyError:
    """Return msgspec's message in words of JSON."""
    located = _AT.fullmatch(message)
    what, is_key, path = located.groups() if located else (message, None, "")
    types = list(_types_at(kind, path))
    subject = path or "the body"
    if match_ := _UNKNOWN.fullmatch(what):
        detail = (
            f"{_inside(path, _shortened(match_[1]))} is unknown; the fields are {_fields(types)}"
        )
        return UnfitBodyError(detail, path=_inside(path, match_[1]))
    if match_ := _MISSING.fullmatch(what):
        path = _inside(path, match_[1])
        return UnfitBodyError(f"{path} is missing", path=path)
    if match_ := _ENUM.fullmatch(what):
        detail = f"{subject} is {_shortened(match_[1])}; give {_literals(types)}"
    elif not (match_ := _EXPECTED.fullmatch(what)):
        detail = f"{subject}: {what}"
    elif is_key:  # which is text in every JSON
        outer = path.replace("[...]", "") or subject
        detail = f"a key inside {outer} is not {_wanted(match_[1], types)}"
    elif match_[2]:
        detail = f"{subject} is {_NAMES[match_[2]]}; give {_wanted(match_[1], types)}"
    else:
        size, direction = _BOUNDS[match_[3]]
        detail = f"{subject} is {size}; give {match_[4]} {direction}"
    return UnfitBodyError(detail, path=path)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _wanted(names: str, types: Iterable[inspect.Type]) -> str:
    fields = _fields(types)
    wanted = [_WANTED_NAMES[name] for name in names.split(" | ")]
    return " or ".join(
        f"{name} with {fields}" if name == "an object" and fields else name for name in wanted
    )


def _fields(types: Iterable[inspect.Type]) -> str:
    structs = (type_ for type_ in types if isinstance(type_, inspect.StructType))
    return ", ".join(field.encode_name for struct in structs for field in struct.fields)


def _literals(types: Iterable[inspect.Type]) -> str:
    literals = (type_ for type_ in types if isinstance(type_, inspect.LiteralType))
    return " or ".join(str(value) for literal in literals for value in literal.values)


def _types_at(kind: type[msgspec.Struct], path: str) -> Iterator[inspect.Type]:
    """Return the types that may be at `path`."""
    types: list[inspect.Type] = [inspect.type_info(kind)]
    for step in _STEP.findall(path):
        types = [inner for type_ in types for inner in _types_in(type_, step)]
    yield from types


def _types_in(outer: inspect.Type, step: str) -> Iterator[inspect.Type]:
    inner: list[inspect.Type] = []
    if isinstance(outer, inspect.StructType):
        inner = [field.type for field in outer.fields if field.encode_name == step]
    elif isinstance(outer, inspect.ListType):
        inner = [outer.item_type]
    elif isinstance(outer, inspect.DictType):
        inner = [outer.value_type]
    for each in inner:
        yield from _alternatives(each)


def _alternatives(found: inspect.Type) -> Iterable[inspect.Type]:
    """The types that a union is of, without what a description adds."""
    if isinstance(found, inspect.Metadata):
        found = found.type
    return found.types if isinstance(found, inspect.UnionType) else (found,)


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…"
