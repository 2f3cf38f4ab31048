"""A node joins, takes a job, and everything that the job writes arrives."""

from __future__ import annotations

import hashlib
import json
import stat

import pytest

from tests.support.agent_process import (
    Node,
    build_dataset_pin,
    build_job,
    build_training_job,
    list_running_processes,
    run_job,
    wait_until_finished,
)
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer, read_json_blob
from tests.support.waits import wait_until
from trainer import protocol

pytestmark = pytest.mark.processes


@pytest.mark.usefixtures("requires_sandbox")
def test_node_sends_what_training_jobs_write_and_keeps_identity_and_dataset(site: NodeApiServer, node: Node) -> None:
    first = site.queue_job(build_training_job(site, steps=25))
    assert node.run("--once", "--label", "cpu", sandbox="bubblewrap") == 0
    held = site.leases[first]

    assert held.end.outcome == "done", held.end.reason + held.log
    assert held.end.result["final_loss"] == 10 / 25
    assert held.end.result["data"] == ["dev", "manifest.json", "tokenizer.json", "train"], "never the test split"
    assert not {"SECRET_KEY", "PREPARATIONS"} & {*held.end.result["environment"]}
    assert [(row["step"], row["loss"]) for row in held.rows] == [(step, 10 / step) for step in range(1, 26)]
    assert held.log == "training entry from step 0\n"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    names = ["model.safetensors", "optimizer.pt", "state.json", "manifest.json"]
    assert [file.path for file in held.checkpoints[0].files] == names
    assert [file.path for file in held.end.files] == ["run.json"]
    assert read_json_blob(site, held.end.files[0])["arch"] == "entry"
    assert site.registered[0].labels == ("cpu",)
    assert site.registered[0].hardware.sandboxes == ("bubblewrap",)
    assert list((node.home / "work").iterdir()) == []
    assert list_running_processes(node.home) == []

    identity = node.home / "identity.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    assert json.loads(identity.read_text())["node"] == 7
    second = site.queue_job(build_training_job(site))
    assert node.run("--once", token=None) == 0
    assert site.leases[second].end.outcome == "done"
    assert len(site.registered) == 1
    assert node.home.with_suffix(".preparations").read_text() == "python-library\n", "the dataset is prepared once"


def build_job_with_dataset(site: NodeApiServer, hash: str, files: tuple[protocol.FileRef, ...]) -> protocol.JobSpec:
    pin = build_dataset_pin(hash).model_copy(update={"files": files})
    return build_job(site, protocol.TrainOrder(dataset=pin, config={"steps": 20}))


def test_published_dataset_is_downloaded_once_and_not_prepared(running_node: Node) -> None:
    site, home, hash = running_node.site, running_node.home, "b" * 64
    contents = {"manifest.json": json.dumps({"hash": hash}).encode(), "tokenizer.json": b'{"published": 1}'}
    contents |= {"train/00000.bin": b"train" * 1000, "dev/00000.bin": b"dev"}
    files = tuple(site.store_blob(content, path) for path, content in contents.items())
    site.inject_fault("down", f"blobs/{files[2].sha256}", times=2)
    truncated = home / "datasets" / hash / files[3].path
    truncated.parent.mkdir(parents=True)
    truncated.write_bytes(b"d")
    for _ in range(2):
        finish = run_job(site, build_job_with_dataset(site, hash, files)).end
        assert (finish.outcome, finish.result["data"]) == ("done", ["dev", "manifest.json", "tokenizer.json", "train"])
    for file in files:
        assert (home / "datasets" / hash / file.path).read_bytes() == contents[file.path]
        assert sum(file.sha256 in request for request in site.requests) == (3 if file is files[2] else 1)


def test_dataset_with_another_hash_than_its_files_is_refused(running_node: Node) -> None:
    site = running_node.site
    files = (site.store_blob(json.dumps({"hash": "f" * 64}).encode(), "manifest.json"),)
    finish = run_job(site, build_job_with_dataset(site, "c" * 64, files)).end
    assert finish.outcome == "failed"
    assert "not those of the hash" in finish.reason
    assert not (running_node.home / "datasets" / ("c" * 64)).exists()


def test_training_resumes_from_another_nodes_checkpoint(running_node: Node) -> None:
    site = running_node.site
    first = run_job(site, build_training_job(site, steps=20)).checkpoints
    held = run_job(site, build_training_job(site, resume=first[0], steps=20))
    assert held.end.outcome == "done"
    assert held.log == "training entry from step 10\n"
    assert [row["step"] for row in held.rows] == list(range(11, 21))
    assert held.checkpoints == first[1:]


def test_checkpoint_sender_keeps_the_newest_two(site: NodeApiServer, agent: InProcessAgent) -> None:
    lease = site.queue_job(build_training_job(site, steps=1000, pace=0.1, every=5))
    agent.start()
    wait_until(lambda: lease in site.leases and len(site.leases[lease].checkpoints) >= 4)
    folder = agent.home / "work" / str(lease) / "out" / "checkpoints"
    wait_until(lambda: len(list(folder.glob("step-*[0-9]"))) <= 2)
    site.leases[lease].stop = protocol.HeartbeatReply(stop="cancel")
    wait_until_finished(site, lease)


def test_checkpoint_sender_with_an_interval_sends_only_the_last(running_node: Node) -> None:
    site = running_node.site
    spec = build_training_job(site, steps=35)
    order = spec.order.model_copy(update={"upload_seconds": 3600.0})
    held = run_job(site, spec.model_copy(update={"order": order}))
    assert held.end.outcome == "done"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [30]


def build_score_job(
    site: NodeApiServer, graph: bool = False, entry: bool = True, secret: str | None = None, **run: object
) -> protocol.JobSpec:
    contents = {"model.safetensors": b"w", "optimizer.pt": b"o", "manifest.json": b"{}"}
    traced = tuple(site.store_blob(b"{}", name) for name in protocol.GRAPH_FILES)
    digest = hashlib.sha256("".join(file.sha256 for file in traced).encode()).hexdigest()
    checkpoint = protocol.Checkpoint(step=20, files=tuple(site.store_blob(*item[::-1]) for item in contents.items()))
    order = protocol.ScoreOrder(
        dataset=build_dataset_pin(),
        run=site.store_blob(json.dumps(run).encode(), "run.json"),
        checkpoint=checkpoint,
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


def test_scoring_job_without_entry_code_runs_the_release(running_node: Node) -> None:
    site = running_node.site
    for graph in (True, False):
        held = run_job(site, build_score_job(site, graph, entry=False))
        assert held.end.outcome == "done", held.end.reason + held.log
        assert held.end.result == {**SCORED, "graph": sorted(protocol.GRAPH_FILES) if graph else []}
        assert [file.path for file in held.end.files] == ["items.jsonl.gz", "losses.npy", "tokenizer.json"]
        assert held.log == "scoring\n"
    names = {hashlib.sha256(content).hexdigest() for content in (b"questions", b"more")}
    assert {path.name for path in (running_node.home / "evaluation").iterdir()} == names
    assert all(sum(name in request for request in site.requests) == 1 for name in names), "downloaded once"


def test_scoring_job_draws_its_text_by_the_secret(running_node: Node) -> None:
    held = run_job(running_node.site, build_score_job(running_node.site, graph=True, entry=False, secret=SECRET))
    assert held.end.result["test"] == f"2000 tokens of test, drawn by {SECRET}"
    assert held.end.result["sees_secret"] is False
    assert SECRET not in held.log


def test_scoring_job_with_entry_code_returns_only_numbers(running_node: Node) -> None:
    held = run_job(running_node.site, build_score_job(running_node.site, secret=SECRET))
    assert held.end.outcome == "done", held.end.reason + held.log
    assert held.end.result == {"bits_per_byte": 1.5, "tokenizer": True, "sees_secret": False}
    assert [file.path for file in held.end.files] == ["tokenizer.json"]
    assert held.log == ""


@pytest.mark.parametrize(
    ("run", "entry", "cause", "reason"),
    [
        ("sleeps", False, "infrastructure", "The scoring was ended."),
        ("cheats", False, "model", "The model looks ahead."),
        ("sleeps", True, "infrastructure", "The scoring was ended."),
        ("cheats", True, "model", "The entry's Python could not be scored."),
        ("breaks", False, "infrastructure", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_failed_scoring_job_has_a_cause_and_a_reason(
    running_node: Node, run: str, entry: bool, cause: str, reason: str
) -> None:
    spec = build_score_job(running_node.site, entry=entry, **{run: True})
    if run == "sleeps":
        spec = spec.model_copy(update={"limits": spec.limits.model_copy(update={"wall_seconds": 1.0})})
    finish = run_job(running_node.site, spec).end
    assert (finish.outcome, finish.cause) == ("failed", cause)
    assert finish.reason.startswith(reason)
