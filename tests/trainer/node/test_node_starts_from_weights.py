"""A run that starts from another run's weights, on a node: a real training of a tiny model, from the order alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import trainer
from scheduler import storage
from tests.support.agent_process import build_dataset_pin, build_job, build_training_job, run_job
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer, read_json_blob
from trainer import protocol

pytestmark = pytest.mark.processes

LIMITS = protocol.JobLimits(wall_seconds=300, memory_bytes=4 * 10**9, disk_bytes=10**9, processes=256)
TRAIN = {"sequence_length": 32, "batch": 4, "dev_tokens": 256, "sample_tokens": 0, "precision": "fp32"}
CONFIG = {"arch": "gpt", "model": {"depth": 2, "width": 32, "heads": 2}, "train": TRAIN, "device": "cpu", "threads": 1}


def store_base_weights(site: NodeApiServer, run: Path, name: str = "run-12") -> protocol.BaseWeights:
    """The newest checkpoint of a run's folder, as the site has it."""
    folder = max((run / "checkpoints").iterdir())
    files = [site.store_blob(path.read_bytes(), path.name) for path in sorted(folder.iterdir())]
    checkpoint = protocol.Checkpoint(step=int(folder.name[5:]), files=tuple(files))
    return protocol.BaseWeights(
        name=name, run=site.store_blob((run / "run.json").read_bytes(), "run.json"), checkpoint=checkpoint
    )


@pytest.mark.slow
def test_training_starts_from_another_runs_weights(
    site: NodeApiServer, dataset_folder: Path, tiny_run: Path, agent: InProcessAgent
) -> None:
    hash = json.loads((dataset_folder / "manifest.json").read_text())["hash"]
    pin = protocol.DatasetPin(corpus="files:x", tokenizer="bpe:320", hash=hash)
    shutil.copytree(dataset_folder, agent.home / "datasets" / pin.hash)
    base = store_base_weights(site, tiny_run)
    order = protocol.TrainOrder(dataset=pin, config={**CONFIG, "seed": 2, "budget": "3steps"}, base=base)
    spec = build_job(site, order, entry=False, limits=LIMITS)
    release = site.store_blob(storage.pack_sources(Path(trainer.__file__).parent), "release.tar")
    agent.start()
    held = run_job(site, spec.model_copy(update={"release": release}))
    assert held.end.outcome == "done", held.end.reason + held.log
    learned = json.loads((tiny_run / "result.json").read_text())["final_loss"]
    first = next(row["loss"] for row in held.rows if row["kind"] == "dev")
    assert first == pytest.approx(learned, abs=1e-6), "the first loss is the last one of the other run"
    weights = next(file for file in base.checkpoint.files if file.path == "model.safetensors")
    start = read_json_blob(site, held.end.files[0])["from"]
    name = f"run-12/step-{base.checkpoint.step:08d}"
    assert (start["name"], start["sha256"], start["new"]) == (name, weights.sha256, [])


# --- files of the job, with a release that does not train ---


@pytest.fixture
def small_base(site: NodeApiServer) -> protocol.BaseWeights:
    files = (
        site.store_blob(b"w", "model.safetensors"),
        site.store_blob(b"o", "optimizer.pt"),
        site.store_blob(b"{}", "manifest.json"),
    )
    return protocol.BaseWeights(
        name="run-7", run=site.store_blob(b"{}", "run.json"), checkpoint=protocol.Checkpoint(step=40, files=files)
    )


def test_base_weights_come_without_optimizer_state(
    site: NodeApiServer, small_base: protocol.BaseWeights, agent: InProcessAgent
) -> None:
    agent.start()
    spec = build_training_job(site)
    held = run_job(site, spec.model_copy(update={"order": spec.order.model_copy(update={"base": small_base})}))
    config = read_json_blob(site, held.end.files[0])["config"]
    assert config["from"].endswith("/base/run-7/checkpoints/step-00000040")
    fetched = [request.rpartition("/")[2] for request in site.requests if request.startswith("GET")]
    assert small_base.run.sha256 in fetched
    names = {file.path for file in small_base.checkpoint.files if file.sha256 in fetched}
    assert names == {"model.safetensors", "manifest.json"}
    held = run_job(site, build_training_job(site, **{"from": "/etc"}))
    assert "from" not in read_json_blob(site, held.end.files[0])["config"], "an entry cannot choose them"


def test_replay_starts_from_the_same_base_weights(
    site: NodeApiServer, small_base: protocol.BaseWeights, agent: InProcessAgent
) -> None:
    agent.start()
    files = (site.store_blob(b"weights 10 " * 100, "model.safetensors"), site.store_blob(b"{}", "state.json"))
    claimed = protocol.Checkpoint(step=10, files=files)
    order = protocol.ReplayOrder(dataset=build_dataset_pin(), config={"steps": 20}, base=small_base, claimed=claimed)
    finish = run_job(site, build_job(site, order)).end
    assert finish.outcome == "done", finish.reason
    assert finish.result["exact"]
    assert any(small_base.run.sha256 in request for request in site.requests)
