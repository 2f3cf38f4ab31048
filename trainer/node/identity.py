"""Who this node is: what the site gave it when it joined."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


class IdentityError(ValueError):
    """The node's identity cannot be used."""


@dataclass(frozen=True)
class Identity:
    server: str
    node: int
    token: str
    """The node's own credential. Never leaves this process."""
    public_key: str
    """Base64 of the site's Ed25519 key as it was on joining: orders signed by any other are refused."""
    joined_with: str = ""
    """`fingerprint` of the join token: another one means that the node is to join again."""

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
        """Write it so that only its owner can read it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".partial")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


def hash_join_token(token: str) -> str:
    """Return what is kept of a join token: it is used up, but it need not lie around."""
    return hashlib.sha256(token.encode()).hexdigest()
