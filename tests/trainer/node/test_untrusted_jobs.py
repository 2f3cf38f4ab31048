"""Refused orders run nothing, misbehaving jobs fail with a reason for their author, and the node takes the next job."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support import stdlib_release
from tests.support.agent_process import (
    HASH,
    Node,
    build_dataset_pin,
    build_training_job,
    list_running_processes,
    run_job,
)
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import wait_until
from trainer import protocol
from trainer.node.identity import Identity, UntrustedOrderError, verify_order
from trainer.node.job_handlers import JOB_HANDLERS
from trainer.node.job_handlers.train import TIME_ADVICE

pytestmark = pytest.mark.processes


def assert_refused(node: Node, spec: protocol.JobSpec, reason: str) -> None:
    """Check that nothing ran. The node goes on, or the next test would get no job done."""
    site = node.site
    held = run_job(site, spec)
    site.sign, site.rewrite = site.key.sign, lambda spec: spec
    assert (held.end.outcome, held.end.cause) == ("failed", "infrastructure")
    assert reason in held.end.reason
    assert (held.log, held.rows, held.checkpoints) == ("", [], [])
    assert list_running_processes(node.home) == []


NOT_SIGNED = "The order is not signed by the site that this node joined. Nothing was run."


def test_identity_belongs_to_one_site_and_its_first_key(site: NodeApiServer, node: Node) -> None:
    assert node.run(token=None) == 2
    assert "start it once with --token" in node.read_output()
    assert node.run(token="wrong") == 1
    assert "This join token is not known or has expired." in node.read_output()
    assert not (node.home / "identity.json").exists()
    site.queue_job(build_training_job(site))
    assert node.run("--once") == 0
    identity = json.loads((node.home / "identity.json").read_text())
    assert base64.b64decode(identity["public_key"]) == site.key.public_key().public_bytes_raw()

    site.sign = Ed25519PrivateKey.generate().sign
    lease = site.queue_job(build_training_job(site))
    assert node.run("--once") == 0
    assert NOT_SIGNED in site.leases[lease].end.reason
    (node.home / "identity.json").write_text(json.dumps(identity | {"server": "https://elsewhere.example"}))
    assert node.run() == 2
    assert "This node belongs to https://elsewhere.example." in node.read_output()


def test_file_with_changed_bytes_is_refused(running_node: Node) -> None:
    spec = build_training_job(running_node.site)
    good = stdlib_release.build_tar({"trainer/models/gpt.py": 'NAME = "changed"\n'})
    file = running_node.site.store_blob(good, "entry.tar")
    changed = bytearray(good)
    changed[600] ^= 1
    running_node.site.blobs[file.sha256] = bytes(changed)
    reason = "entry.tar is not the file that the order names (its SHA-256 differs). Nothing was run."
    assert_refused(running_node, spec.model_copy(update={"entry": file}), reason)


def test_file_outside_its_folder_is_refused(running_node: Node) -> None:
    site = running_node.site
    evil = site.store_blob(b"evil", "../../../../identity.json")
    spec = build_training_job(site, resume=protocol.Checkpoint(step=10, files=(evil,)))
    assert_refused(running_node, spec, "is not a path inside a folder")


def test_prepared_dataset_with_another_hash_is_refused(running_node: Node) -> None:
    order = protocol.TrainOrder(dataset=build_dataset_pin("a" * 64), config={"steps": 20})
    spec = build_training_job(running_node.site).model_copy(update={"order": order})
    assert_refused(running_node, spec, HASH)


def test_revoked_node_ends_with_a_reason(site: NodeApiServer, agent: InProcessAgent) -> None:
    agent.start()
    wait_until(lambda: site.polls)
    site.nodes.clear()
    wait_until(lambda: agent.ended)
    assert "This node's token is not known: it was revoked." in str(agent.ended)


# --- misbehaving jobs -------------------------------------------------------------------------------------------------

ENDED = "The training was ended."
CASES: dict[str, tuple[str, str, str]] = {
    "diverges": ("fail(3, 'model', 'The loss became NaN at step 17.')", "model", "The loss became NaN at step 17."),
    "reason is not a sentence": (
        "fail(3, 'model', '\\x1b[31mred\\n\\n' + 'x' * 1000)", "model", "[31mred " + "x" * 391 + "…",
    ),
    "memory": (
        "held = b'x' * 300_000_000; time.sleep(30)", "model", f"{ENDED} It used more than 200.0 MB of memory.",
    ),
    "time": ("time.sleep(60)", "infrastructure", f"{ENDED} It ran longer than 1 seconds. {TIME_ADVICE}"),
}  # fmt: skip
LIMITS = {"memory": {"memory_bytes": 200_000_000}, "time": {"wall_seconds": 1.0}}


@pytest.mark.parametrize("case", CASES)
def test_misbehaving_job_fails_with_its_reason(running_node: Node, case: str) -> None:
    code, cause, reason = CASES[case]
    spec = build_training_job(running_node.site, misbehave=code, limits=LIMITS.get(case, {}))
    finish = run_job(running_node.site, spec).end
    assert (finish.outcome, finish.cause, finish.reason) == ("failed", cause, reason)
    assert list_running_processes(running_node.home) == []


def run_to_its_end(node: Node, code: str) -> LeaseRecord:
    held = run_job(node.site, build_training_job(node.site, misbehave=code))
    assert held.end.outcome == "done", held.end.reason
    return held


def test_log_with_binary_output_is_readable_and_limited(running_node: Node) -> None:
    noise = "import random; sys.stdout.buffer.write(random.Random(1).randbytes(4_000_000)); sys.stdout.buffer.flush()"
    log = run_to_its_end(running_node, noise).log
    assert "\0" not in log
    assert len(log.encode()) < 2_200_000
    assert log.endswith("[the output beyond 2 MiB is not kept]\n")


def test_metrics_with_invalid_lines_skips_them(running_node: Node) -> None:
    garbage = """
with (out / "metrics.jsonl").open("wb") as file:
    file.write(b"\\xff\\xfe garbage\\n[1, 2]\\n" + b"[" * 20000 + b"\\n" + b"x" * 600_000 + b"\\n")
    file.write(b'{"kind": "dev", "step": 0, "loss": NaN, "text": "\\\\u0000 \\\\ud800", "big": 1e999}\\n{"kind": 7}\\n')
"""
    held = run_to_its_end(running_node, garbage)
    assert held.rows[0] == {"kind": "dev", "step": 0, "loss": None, "text": "\ufffd ?", "big": None}
    assert [row["step"] for row in held.rows[1:]] == list(range(1, 21))


def test_links_in_the_run_folder_are_not_followed(running_node: Node) -> None:
    links = """
os.symlink("/etc/passwd", out / "run.json.link")
os.mkfifo(out / "checkpoints-fifo")
(out / "run.json").unlink()
os.symlink("/etc/passwd", out / "run.json")
folder = out / "checkpoints" / "step-00000005"
folder.mkdir(parents=True)
os.symlink("/etc/passwd", folder / "model.safetensors")
(folder / "manifest.json").write_text(json.dumps({"step": 5, "files": [
    {"path": name, "sha256": "0" * 64, "size": 1} for name in ("model.safetensors", "../../../x")]}))
os.symlink("/etc", out / "checkpoints" / "step-00000006")
"""
    held = run_to_its_end(running_node, links)
    assert held.end.files == ()
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    assert not any(b"root:" in content for content in running_node.site.blobs.values())


# --- a newer site: signed orders are parsed strictly, replies are not -------------------------------------------------


@pytest.fixture
def newer_site(site: NodeApiServer) -> NodeApiServer:
    """A site whose JSON replies have unknown fields. Files and specs are unchanged."""
    handle = site.handle

    def add_fields(message: Any) -> Any:
        if isinstance(message, dict):
            return {name: add_fields(value) for name, value in message.items()} | {"later": {"added": [1]}}
        return message

    def answer(method: str, path: str, token: str, content: bytes) -> bytes:
        reply = handle(method, path, token, content)
        return reply if method == "GET" else json.dumps(add_fields(json.loads(reply))).encode()

    site.handle = answer  # type: ignore[method-assign]
    return site


def test_node_ignores_unknown_fields_of_replies(newer_site: NodeApiServer, agent: InProcessAgent) -> None:
    agent.start()
    finish = run_job(newer_site, build_training_job(newer_site)).end
    assert finish.outcome == "done", finish.reason
    assert newer_site.polls[0].hardware.kinds == tuple(kind for kind in JOB_HANDLERS if kind != "rephrase"), (
        "a node without a back end offers all kinds but rephrase"
    )


def sign_spec(site: NodeApiServer, spec: str) -> tuple[protocol.Lease, Identity]:
    identity = Identity(site.address, 7, "token", base64.b64encode(site.key.public_key().public_bytes_raw()).decode())
    signature = base64.b64encode(site.key.sign(spec.encode())).decode()
    return protocol.Lease(lease=1, token="t", seconds=9, spec=spec, signature=signature), identity


def read_spec(site: NodeApiServer) -> Any:
    """Return the fields of a job for lease 1 of node 7."""
    return json.loads(protocol.encode_message(build_training_job(site).model_copy(update={"lease": 1, "node": 7})))


@pytest.mark.parametrize("where", [(), ("limits",), ("order",), ("order", "dataset")], ids=lambda path: ".".join(path))
def test_job_spec_is_parsed_strictly_at_every_depth(site: NodeApiServer, where: tuple[str, ...]) -> None:
    words = inner = read_spec(site)
    assert verify_order(*sign_spec(site, json.dumps(words))).order.kind == "train"
    for name in where:
        inner = inner[name]
    inner["later"] = True
    with pytest.raises(UntrustedOrderError, match=r"update this agent\. Nothing was run"):
        verify_order(*sign_spec(site, json.dumps(words)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"node": 8}, "The order is for node 8, this is node 7. Nothing was run."),
        ({"lease": 99}, "The order is for lease 99, this is lease 1. Nothing was run."),
        ({"version": 2}, "The order is of version 2, this agent's is 1: update it."),
    ],
)
def test_order_for_another_node_lease_or_version_is_refused(
    site: NodeApiServer, change: dict[str, int], reason: str
) -> None:
    with pytest.raises(UntrustedOrderError, match=reason):
        verify_order(*sign_spec(site, json.dumps(read_spec(site) | change)))


def test_job_spec_omits_unused_fields_for_older_agents(site: NodeApiServer) -> None:
    words = json.loads(protocol.encode_message(build_training_job(site, given=None)))
    assert set(words["order"]) == {"kind", "dataset", "config"}
    assert words["order"]["config"] == {"steps": 20, "given": None}, "a null in the configuration is kept"
    assert protocol.JobSpec.model_validate(words) == build_training_job(site, given=None)
