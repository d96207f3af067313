"""What a field of a resource can be, said once: checked here, and by the API server as a rule.

The API server refuses a bad spec by the rules in the CRDs, which `crds.py` makes from these; the
operator checks again, since a resource can be older than the rules.
"""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tailrace.settings.quantities import (
    DIGITS_MAX,
    DURATION,
    DURATION_UNITS,
    SIZE,
    SIZE_UNITS,
    Quantity,
)

RULES = "x-kubernetes-validations"
_LENGTH_MAX = 32  # of a quantity
_PREFIX_MAX = 253  # of a key, before the /


class Fields(BaseModel):
    """A part of a resource."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL, of a field whose annotation has it.

    `message` is a text, `message_expression` an expression that makes one.
    `field`: below the place of the rule, as in `.topicName`; the error names it.
    """

    rule: str
    message: str | None = None
    message_expression: str | None = None
    field: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the rule as a CRD has it."""
        given = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": self.field,
        }
        return {name: value for name, value in given.items() if value is not None}

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema with the rule."""
        return with_rule(handler(schema), self)


def ruled(*each: Rule) -> ConfigDict:
    """`model_config` of a part whose fields have rules together."""
    return ConfigDict(json_schema_extra={RULES: [rule.document() for rule in each]})


def unchanged(name: str, *, otherwise: str = "''") -> str:
    """Return in CEL: a field that may be absent is unchanged. `otherwise`: what absence means."""
    now, before = (f"(has({it}.{name}) ? {it}.{name} : {otherwise})" for it in ("self", "oldSelf"))
    return f"{now} == {before}"


def with_rule(schema: JsonSchemaValue, rule: Rule) -> JsonSchemaValue:
    """The schema, with this rule after those that it has."""
    return {**schema, RULES: [*schema.get(RULES, ()), rule.document()]}


class _Checked:
    """Of a field: its value, once it has its type, is what `_check` returns; ValueError.

    A CRD has `_rule` for it, whose message is clearer than that of a schema.
    """

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Refuse what is not allowed."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema with what the API server checks."""
        return self._described(handler(schema))

    def _described(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        return with_rule(schema, self._rule())

    def _rule(self) -> Rule:
        raise NotImplementedError

    def _check(self, given: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Written(_Checked):
    """A text field that holds a quantity."""

    quantity: Quantity

    def _described(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """A text with a bound, and a rule that says what the CLI says."""
        expression = quantity_expression(self.quantity)
        rule = Rule(expression, message=f"not {self.quantity.described}")
        return with_rule({**schema, "maxLength": _LENGTH_MAX}, rule)

    def _check(self, word: str | None) -> str | None:
        if word is not None:
            self.quantity.read(word)
        return word


def duration(least_ms: int, most_ms: int | None = None, *, or_none: bool = False) -> Written:
    """A text field such as "7d"."""
    return Written(Quantity(DURATION, least_ms, most_ms, or_none))


def size(least_bytes: int, most_bytes: int | None = None, *, or_none: bool = False) -> Written:
    """A text field such as "10Gi"."""
    return Written(Quantity(SIZE, least_bytes, most_bytes, or_none))


@dataclass(frozen=True, slots=True)
class Text(_Checked):
    """A text field of a form; `form`: a regular expression that Go reads as well."""

    form: str
    message: str

    def _rule(self) -> Rule:
        return Rule(f"self.matches('^({self.form})$')", message=self.message)

    def _check(self, word: str | None) -> str | None:
        if word is not None and not re.fullmatch(self.form, word):
            raise ValueError(self.message)
        return word


@dataclass(frozen=True, slots=True)
class Keys(_Checked):
    """A map whose keys are names with a prefix or without, as in `example.com/team`: `form`."""

    form: str
    message: str

    def _rule(self) -> Rule:
        is_one = f"key.matches('^({self.form})$') && key.indexOf('/') <= {_PREFIX_MAX}"
        return Rule(f"self.all(key, {is_one})", message=self.message)

    def _check(self, given: dict[str, str]) -> dict[str, str]:
        for key in given:
            if not re.fullmatch(self.form, key) or key.find("/") > _PREFIX_MAX:
                raise ValueError(self.message)
        return given


@dataclass(frozen=True, slots=True)
class TotalBytes(_Checked):
    """A bound of a map's keys and values together, in UTF-8."""

    most: int
    message: str

    def _rule(self) -> Rule:
        each = "bytes(key).size() + bytes(self[key]).size()"
        return Rule(f"self.map(key, {each}).sum() <= {self.most}", message=self.message)

    def _check(self, given: dict[str, str]) -> dict[str, str]:
        if sum(len(text.encode()) for item in given.items() for text in item) > self.most:
            raise ValueError(self.message)
        return given


class NoneTwice(_Checked):
    """A list of texts that Kubernetes keys: the API server refuses a duplicate, with its path."""

    def _described(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """A set, which server-side apply merges by its items."""
        return {**schema, "x-kubernetes-list-type": "set"}

    def _check(self, given: tuple[str, ...]) -> tuple[str, ...]:
        for index, each in enumerate(given):
            if each in given[:index]:
                raise ValueError(f'Duplicate value: "{each}"')
        return given


class ResourceQuantity:
    """A quantity as in a pod's resources: `500m`, `1Gi`, or a number; a text from here on."""

    _MESSAGE = "not a quantity such as 500m, 2 or 1Gi"
    _FORM = "[0-9]{1,15}([.][0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?"

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Refuse what is no quantity."""
        return core_schema.no_info_before_validator_function(self._text, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema by which Kubernetes itself describes quantities."""
        is_text = f"self.matches('^{self._FORM}$')"
        rule = Rule(f"type(self) == int ? self >= 0 : {is_text}", message=self._MESSAGE)
        both = {"anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": _LENGTH_MAX}
        return with_rule({"x-kubernetes-int-or-string": True, **both}, rule)

    def _text(self, value: object) -> str:
        text = str(value)
        if not re.fullmatch(self._FORM, text):
            raise ValueError(self._MESSAGE)
        return text


def quantity_expression(quantity: Quantity) -> str:
    """Return in CEL whether `self` is such a quantity; what would pass 64 bits is none."""
    if quantity.kind is SIZE:
        units = "|".join(filter(None, SIZE_UNITS))
        form = f"^[0-9]{{1,{DIGITS_MAX}}}({units})?$"
        is_one = f"self.matches('{form}') && quantity(self).isInteger()"
        value = "quantity(self).asInteger()"
    else:
        is_one = "self.matches('^(0|[0-9]{1,15}(ms|s)|[0-9]{1,10}(m|h|d|w))$')"
        factors = ", ".join(
            f"'{unit}': {duration_unit}" for unit, duration_unit in DURATION_UNITS.items()
        )
        number = f"int(self.find('^[0-9]+')) * {{{factors}}}[self.find('[a-z]+')]"
        value = f"(self == '0' ? 0 : {number})"
    parts = [is_one, f"{value} >= {quantity.least}"]
    if quantity.most is not None:
        parts.append(f"{value} <= {quantity.most}")
    is_in_bounds = " && ".join(parts)
    return f"self == 'none' || {is_in_bounds}" if quantity.or_none else is_in_bounds
