"""The node's identity, received from the site when it joined."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.errors import UserError


class IdentityError(UserError):
    """The node's identity file cannot be used."""


@dataclass(frozen=True)
class Identity:
    server: str
    node: int
    token: str  # The node's own credential. Never leaves this process.
    public_key: str  # Base64 of the site's Ed25519 key as it was on joining: orders signed by another key are refused
    joined_with: str = ""  # `hash_join_token` of the join token: with another token the node joins again

    @classmethod
    def load(cls, path: Path) -> Identity | None:
        """Return None if this node has not joined yet; raise `IdentityError` if the file is damaged."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise IdentityError(f"{path} is damaged. Remove it and join again with a new token.") from error

    def save(self, path: Path) -> None:
        """Write it atomically, readable only by its owner."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def hash_join_token(token: str) -> str:
    """Return the hash under which a used join token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()
