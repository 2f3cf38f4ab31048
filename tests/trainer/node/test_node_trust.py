"""Jobs that a node refuses: it runs nothing, reports the reason and takes the next job."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support import stdlib_release
from tests.support.agent_process import (
    Node,
    build_dataset_pin,
    build_training_job,
    list_running_processes,
    wait_until_finished,
)
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import wait_until
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


def run_refused_job(site: NodeApiServer, node: Node, lease: int, outcome: str = "failed") -> str:
    """Return the reason of a refused job. Check that nothing ran and that the node finishes the next job."""
    held = wait_until_finished(site, lease)
    assert held.end.outcome == outcome
    assert has_no_output(held)
    site.sign, site.rewrite = site.key.sign, lambda spec: spec
    after = wait_until_finished(site, site.queue_job(build_training_job(site)))
    assert after.end.outcome == "done", after.end.reason
    assert list_running_processes(node.home) == []
    return held.end.reason


def has_no_output(held: LeaseRecord) -> bool:
    return held.log == "" and held.rows == [] and held.checkpoints == []


def test_order_signed_by_another_key_is_refused(site: NodeApiServer, node: Node) -> None:
    site.sign = Ed25519PrivateKey.generate().sign
    lease = site.queue_job(build_training_job(site))
    node.start()
    assert run_refused_job(site, node, lease) == (
        "The order is not signed by the site that this node joined. Nothing was run."
    )


def test_public_key_is_pinned_across_restarts(site: NodeApiServer, node: Node) -> None:
    site.queue_job(build_training_job(site))
    assert node.start("--once").wait() == 0
    site.key = Ed25519PrivateKey.generate()
    site.sign = site.key.sign
    lease = site.queue_job(build_training_job(site))
    assert node.start("--once").wait() == 0
    finish = wait_until_finished(site, lease).end
    assert "not signed by the site" in finish.reason


def test_order_with_one_changed_byte_is_refused(site: NodeApiServer, node: Node) -> None:
    sign = site.key.sign
    site.sign = lambda data: sign(data.replace(b'"steps":20', b'"steps":21'))
    lease = site.queue_job(build_training_job(site))
    node.start()
    assert "not signed by the site" in run_refused_job(site, node, lease)


def test_order_for_another_node_is_refused(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site).model_copy(update={"node": 8}))
    node.start()
    assert run_refused_job(site, node, lease) == "The order is for node 8, this is node 7. Nothing was run."


def test_order_for_another_lease_is_refused(site: NodeApiServer, node: Node) -> None:
    site.rewrite = lambda spec: json.dumps(json.loads(spec) | {"lease": 99})
    lease = site.queue_job(build_training_job(site))
    node.start()
    assert run_refused_job(site, node, lease) == "The order is for lease 99, this is lease 1. Nothing was run."


def test_order_of_another_version_is_refused(site: NodeApiServer, node: Node) -> None:
    site.rewrite = lambda spec: json.dumps(json.loads(spec) | {"version": 2})
    lease = site.queue_job(build_training_job(site))
    node.start()
    assert "The order is of version 2, this agent's is 1: update it." in run_refused_job(site, node, lease)


@pytest.mark.parametrize("part", ["release", "entry"])
def test_release_with_changed_bytes_is_refused(site: NodeApiServer, node: Node, part: str) -> None:
    spec = build_training_job(site)
    file = getattr(spec, part)
    changed = bytearray(site.blobs[file.sha256])
    changed[600] ^= 1
    good = site.blobs[file.sha256]
    site.blobs[file.sha256] = bytes(changed)
    lease = site.queue_job(spec)
    node.start()
    wait_until(lambda: lease in site.leases and site.leases[lease].finish)
    site.blobs[file.sha256] = good
    assert run_refused_job(site, node, lease) == (
        f"{part}.tar is not the file that the order names (its SHA-256 differs). Nothing was run."
    )


def test_entry_with_files_outside_models_is_refused(site: NodeApiServer, node: Node) -> None:
    evil = site.store_blob(stdlib_release.build_tar({"trainer/train.py": "evil"}), "entry.tar")
    lease = site.queue_job(build_training_job(site).model_copy(update={"entry": evil}))
    node.start()
    assert run_refused_job(site, node, lease) == (
        "The archive is refused: trainer/train.py is outside trainer/models/. Nothing was run."
    )
    assert site.leases[lease].finishes[0].cause == "model"


def test_checkpoint_with_escaping_paths_is_refused(site: NodeApiServer, node: Node) -> None:
    evil = site.store_blob(b"evil", "../../../../identity.json")
    lease = site.queue_job(build_training_job(site, resume=protocol.Checkpoint(step=10, files=(evil,))))
    node.start()
    assert "is not a path inside a folder" in run_refused_job(site, node, lease)


def test_dataset_with_another_hash_reports_both(site: NodeApiServer, node: Node) -> None:
    order = protocol.TrainOrder(dataset=build_dataset_pin("a" * 64), config={"steps": 20})
    lease = site.queue_job(build_training_job(site).model_copy(update={"order": order}))
    node.start()
    reason = run_refused_job(site, node, lease)
    assert "a" * 64 in reason
    assert "e" * 64 in reason
    assert site.leases[lease].finishes[0].cause == "infrastructure"


def test_unknown_join_token_is_refused(site: NodeApiServer, node: Node) -> None:
    assert node.start(token="wrong").wait() == 1
    assert "This join token is not known or has expired." in node.read_output()
    assert not (node.home / "identity.json").exists()


def test_revoked_node_ends_with_a_reason(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site))
    node.start()
    wait_until_finished(site, lease)
    site.nodes.clear()
    assert node.wait() == 1
    assert "The site rejects this node: This node's token is not known: it was revoked." in node.read_output()


def test_unregistered_node_without_a_token_is_refused(node: Node) -> None:
    assert node.start(token=None).wait() == 2
    assert "start it once with --token" in node.read_output()


def test_identity_of_another_site_is_refused(site: NodeApiServer, node: Node) -> None:
    site.queue_job(build_training_job(site))
    node.start("--once").wait()
    identity = json.loads((node.home / "identity.json").read_text())
    assert base64.b64decode(identity["public_key"]) == site.key.public_key().public_bytes_raw()
    (node.home / "identity.json").write_text(json.dumps(identity | {"server": "https://elsewhere.example"}))
    assert node.start().wait() == 2
    assert "This node belongs to https://elsewhere.example." in node.read_output()
