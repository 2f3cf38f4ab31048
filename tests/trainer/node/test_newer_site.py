"""Signed orders are parsed strictly; of a newer site's replies an agent ignores unknown fields."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.agent_process import build_training_job, run_job
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from trainer import protocol
from trainer.node.identity import Identity, UntrustedOrderError, verify_order
from trainer.node.job_handlers import JOB_HANDLERS

pytestmark = pytest.mark.processes


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
