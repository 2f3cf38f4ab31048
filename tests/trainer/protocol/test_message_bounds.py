"""Every field of every message has an upper bound: no peer can make the other side store or parse without limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import Field, ValidationError

from tests.trainer.protocol.test_message_schemas import MESSAGES, build_schema
from trainer import protocol
from trainer.protocol.version import MAX_VALUES, check_json_size

UNLIMITED_REPEAT = re.compile(r"(?<!\\)[*+]|\{\d+,\}")


def find_unbounded_fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of strings, numbers, lists and objects of a JSON schema without an upper bound."""
    for alternative in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        yield from find_unbounded_fields(alternative, path)
    match schema.get("type"):
        case "string" if not {"enum", "const", "maxLength"} & schema.keys():
            if "pattern" not in schema or UNLIMITED_REPEAT.search(schema["pattern"]):
                yield path
        case "integer" if not {"const", "maximum", "exclusiveMaximum"} & schema.keys():
            yield path
        case "number" if not {"const", "maximum", "exclusiveMaximum"} & schema.keys():
            yield path
        case "array":
            if "maxItems" not in schema:
                yield path
            yield from find_unbounded_fields(schema["items"], f"{path}[]")
        case "object" if "properties" in schema:
            for name, part in schema["properties"].items():
                yield from find_unbounded_fields(part, f"{path}.{name}")
        case "object":
            if "maxProperties" not in schema and "enum" not in schema.get("propertyNames", {}):
                yield path
            if isinstance(schema.get("additionalProperties"), dict):
                yield from find_unbounded_fields(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("key", MESSAGES)
def test_every_field_of_message_is_bounded(key: str) -> None:
    assert not list(find_unbounded_fields(build_schema(MESSAGES[key])))


def test_unbounded_fields_of_a_message_are_found() -> None:
    class Unbounded(protocol.Message):
        text: str
        letters: str = Field(pattern="^[a-z]+$")
        items: tuple[str, ...] = Field(max_length=3)
        numbers: dict[str, int]
        size: int = Field(ge=0)

    assert list(find_unbounded_fields(build_schema(Unbounded))) == [
        ".text", ".letters", ".items[]", ".numbers", ".numbers{}", ".size",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        {"a": [0] * (MAX_VALUES + 1)},
        {"a": [[0] * 1000] * (MAX_VALUES // 1000)},
        {str(number): {"b": 0} for number in range(MAX_VALUES // 2 + 1)},
    ],
)
def test_json_object_with_too_many_values_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="more than 100000 values"):
        check_json_size(value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_number_that_is_not_finite_is_refused(number: str) -> None:
    with pytest.raises(ValidationError):
        protocol.Heartbeat.model_validate_json(f'{{"phase": "running", "seconds": {number}}}')
