"""Types of message fields. Each has an upper bound, so that no message holds more than its receiver can store."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

MAX_VALUES: Final = 100_000

Identifier = Annotated[int, Field(ge=0, lt=2**63)]
"""Primary key of a row."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes, steps or items."""
Seconds = Annotated[float, Field(ge=0, lt=1e12)]
Name = Annotated[str, Field(max_length=200)]
Label = Annotated[str, Field(max_length=40)]
Sentence = Annotated[str, Field(max_length=1000)]


def check_json_size(value: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object. Raises ValueError if it holds more than `MAX_VALUES` values, at all levels together."""
    values = 0
    level: list[Any] = [value]
    while level:
        children = [child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent)]
        values += len(children)
        if values > MAX_VALUES:
            raise ValueError(f"the object holds more than {MAX_VALUES} values")
        level = [child for child in children if isinstance(child, dict | list | tuple)]
    return value


JsonObject = Annotated[dict[str, Any], Field(max_length=10_000), AfterValidator(check_json_size)]
"""JSON of a form that its handler checks, such as a configuration or a result."""
