"""The node's identity, received from the site when it joined, and the check that orders are signed by that site."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from trainer import protocol
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


class UntrustedOrderError(Exception):
    """The order must not be executed. The message is a sentence."""


def verify_order(lease: protocol.Lease, identity: Identity) -> protocol.JobSpec:
    """Return the order; raise `UntrustedOrderError` unless the pinned key signed it for this node and lease."""
    check_signature(lease, identity.public_key)
    try:
        version = json.loads(lease.spec).get("version")
    except (ValueError, AttributeError) as error:
        raise UntrustedOrderError("The order cannot be read. Nothing was run.") from error
    if version != protocol.VERSION:
        raise UntrustedOrderError(
            f"The order is of version {version}, this agent's is {protocol.VERSION}: update it. Nothing was run."
        )
    try:
        spec = protocol.JobSpec.model_validate_json(lease.spec)
    except ValidationError as error:
        raise UntrustedOrderError("The order cannot be understood: update this agent. Nothing was run.") from error
    if spec.node != identity.node:
        raise UntrustedOrderError(f"The order is for node {spec.node}, this is node {identity.node}. Nothing was run.")
    if spec.lease != lease.lease:
        raise UntrustedOrderError(f"The order is for lease {spec.lease}, this is lease {lease.lease}. Nothing was run.")
    return spec


def check_signature(lease: protocol.Lease, public_key: str) -> None:
    from cryptography.exceptions import InvalidSignature  # lazy, so that the agent starts quickly
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(lease.signature, validate=True), lease.spec.encode())
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise UntrustedOrderError(
            "The order is not signed by the site that this node joined. Nothing was run."
        ) from error
