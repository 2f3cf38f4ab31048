"""A site's swarm run: orders, admission and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import protocol
from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.credentials import LABEL_SECONDS, Admission, make_credential
from trainer.swarm.metrics_reporter import MetricsReporter
from trainer.swarm.site_run import config_from_order
from trainer.training.metrics import MetricsWriter

SECRET = "s" * 40
PEER = "12D3KooWQn1yPtGwGVnB6DTbQ3bRyPPGbtLwWYvKp3cQPbqhsUfE"
CONFIG: dict[str, Any] = {
    "arch": "gpt",
    "seed": 3,
    "budget": "20steps",
    "model": {"depth": 2, "width": 32, "heads": 2},
    "train": {"sequence_length": 16, "batch": 8},
    "swarm": {"micro_batches": 4},
}


def build_order(config: dict[str, Any], **more: Any) -> protocol.SwarmOrder:
    pin = protocol.DatasetPin(corpus="files:x", tokenizer="bpe:300", hash="a" * 64)
    return protocol.SwarmOrder(run=7, dataset=pin, config=config, stages=2, secret=SECRET, **more)


def test_admission_requires_the_labels_own_credential() -> None:
    admission, credential = Admission(SECRET), make_credential(SECRET, "seat-1")
    assert admission.admit(PEER, "seat-1", credential, 0.0)
    assert not admission.admit(PEER, "seat-2", credential, 0.0)
    assert not admission.admit(PEER, "seat-1", make_credential("t" * 40, "seat-1"), 0.0)
    assert not admission.admit(PEER, "", make_credential(SECRET, ""), 0.0)
    assert not admission.admit(PEER, "seat-1", "ü", 0.0)
    # One machine at a time.
    assert not admission.admit("other", "seat-1", credential, LABEL_SECONDS / 2)
    assert admission.admit(PEER, "seat-1", credential, LABEL_SECONDS / 2)
    assert admission.admit("other", "seat-1", credential, 2 * LABEL_SECONDS)


def test_credential_to_sample_does_not_admit_a_worker() -> None:
    admission, label = Admission(SECRET), "sample-7"
    credential = make_credential(SECRET, label)
    assert admission.admit_sample(label, credential)
    assert not admission.admit("peer", label, credential, 0.0)
    assert not admission.admit_sample("sample-8", credential)
    assert not admission.admit_sample("seat-7", make_credential(SECRET, "seat-7"))


def test_order_becomes_a_configuration(dataset: Dataset) -> None:
    config = config_from_order(build_order(CONFIG), dataset)
    assert (config.arch, config.stages, config.steps, config.seed) == ("gpt", 2, 20, 3)
    assert (config.micro_batch, config.micro_batches, config.sequence_length) == (2, 4, 16)
    assert (config.model["width"], config.model["vocabulary_size"]) == (32, dataset.tokenizer.vocabulary_size)
    assert config.checkpoint_every == 2
    assert config == config_from_order(build_order(CONFIG), dataset)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": "60s"}, "number of steps"),
        ({"model": {"depth": 1}}, "1 blocks cannot be partitioned into 2"),
        ({"model": {"depth": 2, "wideness": 3}}, "wideness"),
        ({"swarm": {"learning_rate": -1}}, "learning_rate"),
    ],
)
def test_invalid_order_is_refused_with_its_field(dataset: Dataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_from_order(build_order(CONFIG | change), dataset)


def test_journal_lines_become_metrics_rows(dataset: Dataset, tmp_path: Path) -> None:
    config: SwarmConfig = config_from_order(build_order(CONFIG), dataset)
    transport: Any = SimpleNamespace(bytes_in=5, bytes_out=6, addresses=(f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}",))
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        reporter = MetricsReporter(config, metrics, transport, 100.0)
        reporter.report_address()
        reporter.report({"kind": "run", "time": 1.0, "config": {}})
        reporter.report({"kind": "join", "time": 2.0, "peer": PEER, "label": "seat-9", "stage": 1, "step": 0})
        commit = {"kind": "commit", "time": 3.0, "step": 0, "loss": 5.5, "factor": 0.5, "norm": 1.5}
        reporter.report(commit | {"cover": {"0": {PEER: [0, 1, 3]}, "1": {PEER: [0, 1, 2, 3]}}})
        reporter.report({"kind": "rollback", "time": 4.0, "to": 0, "from": 1, "lost": [1]})
        reporter.report({"kind": "leave", "time": 5.0, "peer": PEER, "stage": 1, "why": "w" * 900})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("what", row["kind"]) for row in rows] == ["address", "join", "train", "step", "rollback", "leave"]
    assert rows[1]["label"] == "seat-9"
    assert (rows[2]["step"], rows[2]["tokens"], rows[2]["flops"]) == (1, 4 * 2 * 16, 4 * 2 * 16 * 100.0)
    assert rows[2]["learning_rate"] == pytest.approx(config.learning_rate / 2)
    assert rows[3]["held"] == {"0": {PEER[-8:]: 6}, "1": {PEER[-8:]: 8}}
    assert (rows[4]["step"], rows[4]["since"]) == (0, 1)
    assert len(rows[5]["why"]) == 200
