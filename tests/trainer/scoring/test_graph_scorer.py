"""Scoring a graph in one process: the same numbers as any other way, and none of what a later token gives away."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import peeking_model
from tests.support.tiny import TINY
from trainer.cli.main import main
from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.scoring.graph_scorer import GraphScore, GraphScorer, score_graph
from trainer.scoring.heldout_text import EncodedDocument

V, T = 64, 32
TRAIN = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "0"),
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32", "--budget", "20steps"),
)


def build_scorer(every: int) -> GraphScorer:
    torch.manual_seed(0)
    traced = trace_architecture(peeking_model, peeking_model.Config(V, T, every))  # type: ignore[arg-type]
    return GraphScorer(build_model(traced), torch.device("cpu"))


def make_texts(documents: int = 60) -> list[EncodedDocument]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 3 * T, size=documents)
    return [EncodedDocument(rng.integers(0, V, size=n), int(n)) for n in lengths]


def score(every: int) -> GraphScore:
    scorer = build_scorer(every)
    ones = np.ones(V, np.int64)
    return score_graph(scorer, scorer, make_texts(), ones, 0, lambda *_: None, rng=np.random.default_rng(1))


@pytest.fixture(scope="module")
def honest() -> GraphScore:
    return score(0)


def test_correction_of_causal_graph_is_rounding(honest: GraphScore) -> None:
    assert abs(honest.correction.nats) < 1e-6
    assert not honest.correction.is_beyond_rounding
    assert honest.bits.bits_per_byte == pytest.approx(honest.bits_per_byte_uncorrected, abs=1e-6)


@pytest.mark.parametrize("every", [1, 2, 8])
def test_graph_that_looks_ahead_gains_nothing(every: int, honest: GraphScore) -> None:
    found = score(every)
    assert found.bits_per_byte_uncorrected < honest.bits_per_byte_uncorrected
    assert found.correction.is_beyond_rounding
    # It trusts what stands in place of the next token, so it loses more than one that does not look.
    assert found.bits.bits_per_byte > honest.bits.bits_per_byte
    assert sum(bits for bits, _ in found.documents) / found.bits.bytes == pytest.approx(found.bits.bits_per_byte)


def test_score_counts_every_token_once(honest: GraphScore) -> None:
    texts = make_texts()
    assert honest.bits.tokens == sum(len(text.tokens) for text in texts) == len(honest.losses)
    assert honest.bits.documents == len(texts)


@pytest.fixture(scope="module")
def traced_run(dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    size = ("--depth", "2", "--sequence-length", "32", "--vocabulary-size", "320")
    fields = ("--set", "width=32", "--set", "heads=2", "--set", "end_of_text=0")
    assert main(["trace", "gpt", "--out", str(folder / "graph"), *size, *fields]) == 0
    flags = ["--dataset", str(dataset_folder), "--out", str(folder / "run"), "--graph", str(folder / "graph"), *TRAIN]
    assert main(["train", *flags]) == 0
    return folder / "run"


def test_score_of_traced_run_needs_no_sandbox_and_no_python(
    traced_run: Path, corpus_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trainer.models.gpt", None)  # any import of it would fail
    assert main(["score", str(traced_run), "--corpus", f"files:{corpus_folder}/00*.txt", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["graph"] == json.loads((traced_run / "run.json").read_text())["identity"]["graph"]
    assert not record["checks"]["look_ahead"]["is_beyond_rounding"]
    assert record["bits_per_byte"] < record["checks"]["untrained"]["bits_per_byte"]
    assert record["scoring_flops_per_token"] > 0


def test_score_of_traced_run_equals_score_of_the_same_python(
    traced_run: Path,
    dataset_folder: Path,
    corpus_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = ["--dataset", str(dataset_folder), "--out", str(tmp_path), *TINY, "--budget", "20steps"]
    assert main(["train", *python, "--train.sample-tokens", "0"]) == 0
    scores = []
    for run in (traced_run, tmp_path):
        capsys.readouterr()
        corpus = f"files:{corpus_folder}/00*.txt"
        assert main(["score", str(run), "--corpus", corpus, "--json", "--sandbox", "none"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["bits_per_byte"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
