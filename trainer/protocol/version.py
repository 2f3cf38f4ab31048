"""What the server, the agent and the processes it starts say to each other. Versioned, frozen, checked on both sides.

Agents are older than their site, or as old, never newer. So that a site can move on before its nodes do:

- What nodes send is read strictly: a field that the site does not know is refused.
- The site's answers may hold fields that an older agent does not know: it passes over them (`heard`).
- A signed spec is read strictly, from the very bytes that were signed: nobody carries out a part of an order. What is
  None is not written (`encode`), so a new field that is None by default reaches an older agent only in a job that needs
  it; that agent hands the job back, asks to be updated, and has run nothing.
- A new kind of order goes to agents that know it (`Hardware.kinds`).

So a new optional field (None) and a new kind keep `VERSION`. Anything else raises it, and a node of another version is
told to update (`Register.version`, `Poll.version`).
"""

from __future__ import annotations

from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

VERSION: Final = 1


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


MessageT = TypeVar("MessageT", bound=Message)


def encode_message(message: Message) -> str:
    """Canonical JSON: what is signed and hashed. Optional fields that are None are left out."""
    return message.model_dump_json(exclude_none=True)


def parse_lenient(kind: type[MessageT], content: str | bytes) -> MessageT:
    """Read an answer of the site's, which may be newer than we are: what we do not know, at any depth, is passed over.

    Raises pydantic's ValidationError. Never for a signed spec.
    """
    return kind.model_validate_json(content, extra="ignore")
