"""A run that starts from another run's weights, on a node: a real training of a tiny model, from the order alone."""

from __future__ import annotations

import pytest

from tests.support.agent_process import build_dataset_pin, build_job, build_training_job, run_job
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer, read_json_blob
from trainer import protocol

pytestmark = pytest.mark.processes


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
