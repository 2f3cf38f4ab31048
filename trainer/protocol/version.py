"""Base class of all messages, and the rules of compatibility. Both sides validate; messages are immutable.

A node agent is never newer than its server. The server can be updated first because:

- The server rejects unknown fields in messages from nodes.
- The agent ignores unknown fields in the server's replies (`parse_lenient`).
- The agent rejects unknown fields in a signed job spec, parsed from the exact bytes that were signed. Fields that are
  None are left out (`encode_message`), so a new field with default None reaches an older agent only in a job that uses
  it. That agent releases the job without running anything and reports that it needs an update.
- A new kind of order is sent only to agents that list it (`Hardware.kinds`).

A new optional field (None), a new kind or a new style keeps `VERSION`. Any other change increments it, and the server
rejects nodes of another version (`Register.version`, `Poll.version`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# --- types of fields --------------------------------------------------------------------------------------------------
# Types of message fields. Each has an upper bound, so that no message holds more than its receiver can store.


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


VERSION: Final = 1


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


MessageT = TypeVar("MessageT", bound=Message)


def encode_message(message: Message) -> str:
    """Return canonical JSON, the form that is signed and hashed. Fields that are None are left out."""
    return message.model_dump_json(exclude_none=True)


def parse_lenient(kind: type[MessageT], content: str | bytes) -> MessageT:
    """Parse a reply of a server that may be newer than this agent. Ignores unknown fields at any depth.

    Raises pydantic's ValidationError. Not for signed specs.
    """
    return kind.model_validate_json(content, extra="ignore")
