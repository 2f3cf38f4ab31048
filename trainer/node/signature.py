"""Verification that an order is signed by the site and meant for this node."""

from __future__ import annotations

import base64
import binascii
import json

from pydantic import ValidationError

from trainer import protocol
from trainer.node.identity import Identity


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
