"""The protocol's bytes are pinned: names of classes may change, field names, types, limits and their order may not.

`schemas.json` holds one JSON schema per message, by its address or kind. A change that `trainer/protocol/version.py`
allows is written there by `python -m tests.trainer.protocol.test_message_schemas`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any, Final

import pytest

from trainer import protocol

SCHEMAS: Final = Path(__file__).with_name("schemas.json")

PROSE: Final = ("title", "description")

MESSAGES: Final[dict[str, type[protocol.Message]]] = {
    "POST /register": protocol.Register,
    "POST /volunteer": protocol.RegisterVolunteer,
    "POST /register, reply": protocol.RegisterReply,
    "POST /poll": protocol.Poll,
    "POST /poll, reply": protocol.PollReply,
    "any, error": protocol.ErrorDetail,
    "POST /heartbeat": protocol.Heartbeat,
    "POST /heartbeat, reply": protocol.HeartbeatReply,
    "POST /metrics": protocol.MetricsBatch,
    "POST /log": protocol.LogChunk,
    "POST /log, reply": protocol.Acknowledgment,
    "POST /blobs": protocol.BlobQuery,
    "POST /blobs, reply": protocol.MissingBlobs,
    "POST /checkpoints": protocol.CheckpointUploaded,
    "POST /packets/take": protocol.TakePackets,
    "POST /packets/take, reply": protocol.TakePacketsReply,
    "POST /packets/submit": protocol.SubmitPackets,
    "POST /packets/submit, reply": protocol.SubmitPacketsReply,
    "POST /finish": protocol.FinishLease,
    "signed spec": protocol.JobSpec,
    "order train": protocol.TrainOrder,
    "order score": protocol.ScoreOrder,
    "order replay": protocol.ReplayOrder,
    "order smoke": protocol.SmokeOrder,
    "order notebook": protocol.NotebookOrder,
    "order generate": protocol.GenerateOrder,
    "order rephrase": protocol.RephraseOrder,
    "order swarm": protocol.SwarmOrder,
    "order seat": protocol.WorkerOrder,
    "order swarm_sample": protocol.SwarmSampleOrder,
    "result train, probes": protocol.ProbeResults,
    "result replay": protocol.ReplayResult,
    "result smoke": protocol.SmokeResult,
    "result self_test": protocol.SelfTestResult,
    "result notebook": protocol.NotebookResult,
    "result generate": protocol.GenerateResult,
    "result rephrase": protocol.RephraseResult,
    "result seat": protocol.WorkerResult,
}


def build_schema(message: type[protocol.Message]) -> dict[str, Any]:
    """Return the JSON schema of a message without the names and docstrings of our classes, references resolved."""
    schema = message.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        kept = {key: value for key, value in node.items() if not (key in PROSE and isinstance(value, str))}
        if "discriminator" in kept:
            kept["discriminator"] = kept["discriminator"]["propertyName"]
        return {key: resolve(value) for key, value in kept.items()}

    return resolve(schema)


def build_schemas() -> dict[str, Any]:
    return {key: build_schema(message) for key, message in MESSAGES.items()}


@pytest.mark.parametrize("key", MESSAGES)
def test_message_schema_matches_pinned_bytes(key: str) -> None:
    assert json.dumps(build_schema(MESSAGES[key])) == json.dumps(json.loads(SCHEMAS.read_text())[key])


def test_pinned_schemas_cover_every_public_message() -> None:
    modules = [
        importlib.import_module(module.name) for module in pkgutil.iter_modules(protocol.__path__, "trainer.protocol.")
    ]
    public = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    messages = {value for value in public if issubclass(value, protocol.Message)} - {protocol.Message}
    parts = {name for message in MESSAGES.values() for name in message.model_json_schema().get("$defs", {})}
    assert {message.__name__ for message in messages - set(MESSAGES.values())} <= parts


if __name__ == "__main__":
    lines = [f" {json.dumps(key)}: {json.dumps(schema)}" for key, schema in build_schemas().items()]
    SCHEMAS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
