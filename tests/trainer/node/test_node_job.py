"""A node joins, takes a job, and everything that the job writes arrives."""

from __future__ import annotations

import hashlib
import json
import stat

import pytest

from tests.support.agent_process import (
    HASH,
    Node,
    build_dataset_pin,
    build_job,
    build_training_job,
    list_running_processes,
    terminate,
    wait_until_finished,
)
from tests.support.node_api_server import NodeApiServer, read_json_blob
from tests.support.waits import wait_until
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


def test_training_job_sends_log_metrics_and_checkpoints(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=25))
    node.start("--label", "cpu")
    held = wait_until_finished(site, lease)

    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result["final_loss"] == 10 / 25
    assert [row["step"] for row in held.rows] == list(range(1, 26))
    assert [row["loss"] for row in held.rows] == [10 / step for step in range(1, 26)]
    assert held.log == "training entry from step 0\n"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    names = ["model.safetensors", "optimizer.pt", "state.json", "manifest.json"]
    assert [file.path for file in held.checkpoints[0].files] == names
    assert [file.path for file in held.finish.files] == ["run.json"]
    assert read_json_blob(site, held.finish.files[0])["arch"] == "entry"
    assert site.registered[0].labels == ("cpu",)
    assert site.registered[0].hardware.sandboxes == ("bubblewrap",)
    wait_until(lambda: not list((node.home / "work").iterdir()))
    assert terminate(node) == 0
    assert list_running_processes(node.home) == []


def test_training_job_sees_no_test_split_and_no_secrets(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site))
    node.start("--once")
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert finish.result["data"] == ["dev", "manifest.json", "tokenizer.json", "train"]
    assert "SECRET_KEY" not in finish.result["environment"]
    assert "PREPARATIONS" not in finish.result["environment"]


def test_identity_file_is_private_and_reused(site: NodeApiServer, node: Node) -> None:
    site.queue_job(build_training_job(site))
    assert node.start("--once").wait() == 0
    path = node.home / "identity.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["node"] == 7
    lease = site.queue_job(build_training_job(site))
    assert node.start("--once", token=None).wait() == 0
    assert wait_until_finished(site, lease).finish is not None
    assert len(site.registered) == 1


def test_dataset_is_prepared_once(site: NodeApiServer, node: Node) -> None:
    leases = [site.queue_job(build_training_job(site)) for _ in range(2)]
    node.start()
    for lease in leases:
        finish = wait_until_finished(site, lease).finish
        assert finish is not None
        assert finish.outcome == "done"
    assert node.home.with_suffix(".preparations").read_text() == "python-library\n"
    assert (node.home / "datasets" / HASH / "manifest.json").is_file()


def test_published_dataset_is_downloaded_once_and_not_prepared(site: NodeApiServer, node: Node) -> None:
    contents = {"manifest.json": json.dumps({"hash": HASH}).encode(), "tokenizer.json": b"{}"}
    contents |= {"train/00000.bin": b"train" * 1000, "dev/00000.bin": b"dev"}
    files = tuple(site.store_blob(content, path) for path, content in contents.items())
    pin = build_dataset_pin().model_copy(update={"files": files})
    orders = [protocol.TrainOrder(dataset=pin, config={"steps": 20}) for _ in range(2)]
    leases = [site.queue_job(build_job(site, order)) for order in orders]
    site.inject_fault("down", f"blobs/{files[2].sha256}", times=2)
    truncated = node.home / "datasets" / HASH / files[3].path
    truncated.parent.mkdir(parents=True)
    truncated.write_bytes(b"d")
    node.start()
    for lease in leases:
        finish = wait_until_finished(site, lease).finish
        assert finish is not None
        assert (finish.outcome, finish.result["data"]) == ("done", ["dev", "manifest.json", "tokenizer.json", "train"])
    for file in files:
        assert (node.home / "datasets" / HASH / file.path).read_bytes() == contents[file.path]
        assert sum(file.sha256 in request for request in site.requests) == (3 if file is files[2] else 1)
    assert not node.home.with_suffix(".preparations").exists()


def test_dataset_with_another_hash_than_its_files_is_refused(site: NodeApiServer, node: Node) -> None:
    files = (site.store_blob(json.dumps({"hash": "f" * 64}).encode(), "manifest.json"),)
    order = protocol.TrainOrder(dataset=build_dataset_pin().model_copy(update={"files": files}), config={"steps": 20})
    lease = site.queue_job(build_job(site, order))
    node.start()
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert finish.outcome == "failed"
    assert "not those of the hash" in finish.reason
    assert not (node.home / "datasets" / HASH).exists()


def test_training_resumes_from_another_nodes_checkpoint(site: NodeApiServer, node: Node) -> None:
    first = site.queue_job(build_training_job(site, steps=20))
    node.start()
    checkpoint = wait_until_finished(site, first).checkpoints[0]
    second = site.queue_job(build_training_job(site, resume=checkpoint, steps=20))
    held = wait_until_finished(site, second)
    assert held.finish is not None
    assert held.finish.outcome == "done"
    assert held.log == "training entry from step 10\n"
    assert [row["step"] for row in held.rows] == list(range(11, 21))
    assert [checkpoint.step for checkpoint in held.checkpoints] == [20]
    assert held.checkpoints[0] == site.leases[first].checkpoints[1]


def test_checkpoint_sender_keeps_the_newest_two(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, steps=1000, pace=0.1, every=5))
    node.start()
    wait_until(lambda: lease in site.leases and len(site.leases[lease].checkpoints) >= 4)
    folder = node.home / "work" / str(lease) / "out" / "checkpoints"
    wait_until(lambda: len(list(folder.glob("step-*[0-9]"))) <= 2)
    site.leases[lease].stop = protocol.HeartbeatReply(stop="cancel")
    wait_until_finished(site, lease)


def test_checkpoint_sender_with_an_interval_sends_only_the_last(site: NodeApiServer, node: Node) -> None:
    spec = build_training_job(site, steps=35)
    order = spec.order.model_copy(update={"upload_seconds": 3600.0})
    lease = site.queue_job(spec.model_copy(update={"order": order}))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [30]


def test_checkpoint_sender_with_a_short_interval_sends_the_newest_ones_in_order(
    site: NodeApiServer, node: Node
) -> None:
    spec = build_training_job(site, steps=60, pace=0.02)
    order = spec.order.model_copy(update={"upload_seconds": 0.01})
    lease = site.queue_job(spec.model_copy(update={"order": order}))
    node.start()
    steps = [checkpoint.step for checkpoint in wait_until_finished(site, lease).checkpoints]
    assert steps == sorted(set(steps))
    assert steps[-1] == 60


def score(
    site: NodeApiServer, graph: bool = False, entry: bool = True, secret: str | None = None, **run: object
) -> protocol.JobSpec:
    files = (
        site.store_blob(b"w", "model.safetensors"),
        site.store_blob(b"o", "optimizer.pt"),
        site.store_blob(b"{}", "manifest.json"),
    )
    traced = tuple(site.store_blob(b"{}", name) for name in protocol.GRAPH_FILES)
    digest = hashlib.sha256("".join(file.sha256 for file in traced).encode()).hexdigest()
    order = protocol.ScoreOrder(
        dataset=build_dataset_pin(),
        run=site.store_blob(json.dumps(run).encode(), "run.json"),
        checkpoint=protocol.Checkpoint(step=20, files=files),
        graph=protocol.GraphFiles(hash=digest, files=traced) if graph else None,
        limit_tokens=2000,
        test_secret=secret,
        reference=site.store_blob(b"losses", "losses.npy"),
        suite=("blimp", "lambada_openai"),
        suite_files=(site.store_blob(b"questions", "blimp/a.jsonl"), site.store_blob(b"more", "blimp/b.jsonl")),
    )
    return build_job(site, order, entry)


SECRET = "5ec2e7" + "0" * 58
SCORED = {
    "bits_per_byte": 1.5,
    "files": ["manifest.json", "model.safetensors"],
    "architecture": "baseline",
    "reference": "losses",
    "limit": "2000",
    "suite": "blimp,lambada_openai",
    "evaluation": {"blimp/a.jsonl": "questions", "blimp/b.jsonl": "more"},
    "test": "test",
    "sees_secret": False,
    "tokenizer": True,
}


@pytest.mark.parametrize("graph", [True, False])
def test_scoring_job_without_entry_code_runs_the_release(site: NodeApiServer, node: Node, graph: bool) -> None:
    lease = site.queue_job(score(site, graph, entry=False))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result == {**SCORED, "graph": sorted(protocol.GRAPH_FILES) if graph else []}
    assert [file.path for file in held.finish.files] == ["items.jsonl.gz", "losses.npy", "tokenizer.json"]
    assert held.log == "scoring\n"


@pytest.mark.parametrize("entry", [False, True])
def test_scoring_job_draws_its_text_by_the_secret(site: NodeApiServer, node: Node, entry: bool) -> None:
    lease = site.queue_job(score(site, graph=not entry, entry=entry, secret=SECRET))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result["sees_secret"] is False
    if not entry:  # of an entry's Python, only numbers come back
        assert held.finish.result["test"] == f"2000 tokens of test, drawn by {SECRET}"
    assert SECRET not in held.log


def test_evaluation_data_is_downloaded_once_by_hash(site: NodeApiServer, node: Node) -> None:
    leases = [site.queue_job(score(site, graph=True, entry=False)) for _ in range(2)]
    node.start()
    for lease in leases:
        finish = wait_until_finished(site, lease).finish
        assert finish is not None
        assert finish.result["evaluation"] == SCORED["evaluation"]
    files = {hashlib.sha256(content).hexdigest() for content in (b"questions", b"more")}
    assert {path.name for path in (node.home / "evaluation").iterdir()} == files
    for name in files:
        assert sum(name in request for request in site.requests) == 1


def test_scoring_job_with_entry_code_returns_only_numbers(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(score(site))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result == {"bits_per_byte": 1.5, "tokenizer": True, "sees_secret": False}
    assert [file.path for file in held.finish.files] == ["tokenizer.json"]
    assert held.log == ""


@pytest.mark.parametrize("entry", [False, True])
def test_score_beyond_its_time_is_infrastructure(site: NodeApiServer, node: Node, entry: bool) -> None:
    spec = score(site, entry=entry, sleeps=True)
    lease = site.queue_job(spec.model_copy(update={"limits": spec.limits.model_copy(update={"wall_seconds": 1.0})}))
    node.start()
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert (finish.outcome, finish.cause) == ("failed", "infrastructure")
    assert finish.reason.startswith("The scoring was ended.")


@pytest.mark.parametrize(
    ("entry", "reason"), [(False, "The model looks ahead."), (True, "The entry's Python could not be scored.")]
)
def test_refused_model_fails_with_a_reason(site: NodeApiServer, node: Node, entry: bool, reason: str) -> None:
    lease = site.queue_job(score(site, entry=entry, cheats=True))
    node.start()
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert (finish.outcome, finish.cause, finish.reason) == ("failed", "model", reason)
