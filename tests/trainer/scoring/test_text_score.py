"""Scoring in one process: equal numbers for a graph and its Python, and no gain from later tokens."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import peeking_model
from tests.support.scored_runs import build_scorer, make_texts, score_tokens
from trainer.cli.main import main
from trainer.graph.build import translate
from trainer.graph.files import Call
from trainer.graph.model import build_model
from trainer.graph.reading import read_traced
from trainer.graph.trace import trace_architecture
from trainer.models.base import LanguageModel
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scored_models import SEEDS, load_graph_models
from trainer.scoring.text_score import TextScore, score_text

V, T = 64, 32
END_OF_TEXT, LAST = 0, 1


def score(every: int) -> TextScore:
    torch.manual_seed(0)
    traced = trace_architecture(peeking_model, peeking_model.Config(V, T, every))  # type: ignore[arg-type]
    return score_tokens(build_scorer(build_model(traced), T), make_texts(V))


@pytest.fixture(scope="module")
def honest() -> TextScore:
    return score(0)


def test_score_of_causal_graph_counts_every_token_once_without_correction(honest: TextScore) -> None:
    texts = make_texts(V)
    assert honest.bits.tokens == sum(len(text.tokens) for text in texts) == len(honest.losses)
    assert honest.bits.documents == len(texts)
    assert abs(honest.correction.nats) < 1e-6
    assert not honest.correction.is_beyond_rounding
    assert honest.bits.bits_per_byte == pytest.approx(honest.bits_per_byte_uncorrected, abs=1e-6)


@pytest.mark.parametrize("every", [1, 2, 8])
def test_graph_that_looks_ahead_gains_nothing(every: int, honest: TextScore) -> None:
    found = score(every)
    assert found.bits_per_byte_uncorrected < honest.bits_per_byte_uncorrected
    assert found.correction.is_beyond_rounding
    # It relies on the replaced next token, so its loss is higher than that of a causal model.
    assert found.bits.bits_per_byte > honest.bits.bits_per_byte
    assert sum(bits for bits, _ in found.documents) / found.bits.bytes == pytest.approx(found.bits.bits_per_byte)


class LastTokenModel(peeking_model.Model):
    """Knows the last token of each text, and finds it by the padding after it."""

    def features(self, tokens: Tensor) -> Tensor:
        tokens_left = (tokens != END_OF_TEXT).long().flip(1).cumsum(1).flip(1)
        is_last = (tokens_left == 1) & (tokens != END_OF_TEXT) & (torch.arange(T) < T - 1)
        return self.head(F.one_hot(tokens, V).float()) + 20 * is_last[..., None] * F.one_hot(tokens * 0 + LAST, V)


def test_last_target_of_short_window_is_corrected() -> None:
    rng = np.random.default_rng(0)
    texts = [EncodedDocument(np.append(rng.integers(2, V, size=n), LAST), n + 1) for n in rng.integers(4, 30, size=60)]
    torch.manual_seed(0)
    found = score_tokens(build_scorer(LastTokenModel(peeking_model.Config(V, T, 0)), T), texts)
    honest = score_tokens(build_scorer(peeking_model.Model(peeking_model.Config(V, T, 0)), T), texts)
    assert found.bits_per_byte_uncorrected < honest.bits_per_byte_uncorrected - 0.1
    assert found.correction.is_beyond_rounding
    difference = found.bits.nats_per_token - honest.bits.nats_per_token
    assert abs(difference) < 2 * found.correction.stderr


def test_graph_that_writes_to_its_tokens_changes_no_other_pass(honest: TextScore) -> None:
    torch.manual_seed(0)
    traced = trace_architecture(peeking_model, peeking_model.Config(V, T, 0))  # type: ignore[arg-type]
    model, graph = build_model(traced), traced.evaluation.features
    number = len(graph.calls)
    writes = (
        Call("aten::type_as", ("%tokens", "%tokens")),  # the tokens themselves
        Call("aten::fill_.Scalar", (f"%{number}", 1)),
    )
    # `translate` leaves the checks of a graph out, which refuse such writes.
    model.evaluation_passes.features = translate(dataclasses.replace(graph, calls=(*graph.calls, *writes)))
    found = score_tokens(build_scorer(model, T), make_texts(V))
    assert found.bits == honest.bits
    assert found.correction == honest.correction


@pytest.mark.slow
def test_score_of_traced_run_needs_no_python_and_equals_that_of_the_python_run(
    traced_run: Path,
    train: Callable[..., int],
    corpus_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def score(run: Path) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["score", str(run), "--corpus", f"files:{corpus_folder}/00*.txt", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert train(tmp_path, "--budget", "6steps") == 0
    python = score(tmp_path)
    monkeypatch.setitem(sys.modules, "trainer.models.gpt", None)  # any import of it would fail
    record = score(traced_run)
    assert record["bits_per_byte"] == pytest.approx(python["bits_per_byte"], abs=1e-5)
    run = json.loads((traced_run / "run.json").read_text())
    assert record["graph"] == run["identity"]["graph"]
    assert record["flops_per_token"] == run["flops_per_token"]
    assert not record["checks"]["look_ahead"]["is_beyond_rounding"]
    assert record["bits_per_byte"] < record["checks"]["untrained"]["bits_per_byte"]
    assert record["scoring_flops_per_token"] > 0
    assert 0 <= record["checks"]["untrained"]["seed"] < SEEDS


class FrequencyModel(LanguageModel):
    """Predicts each token from a table of the text's own pairs: knowledge that was not trained."""

    def __init__(self, texts: list[EncodedDocument]) -> None:
        super().__init__()
        counts = torch.full((V, V), 1e-3)
        for text in texts:
            counts[text.tokens[:-1], text.tokens[1:]] += 1
        self.table = counts.log()

    def features(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]

    def logits(self, features: Tensor) -> Tensor:
        return features


def test_untrained_model_that_knows_the_text_is_detected(honest: TextScore) -> None:
    texts = make_texts(V)
    found = score_tokens(build_scorer(FrequencyModel(texts), T), texts)
    assert found.untrained.is_better
    assert found.untrained.bits_per_byte < found.untrained.unigram_bits_per_byte
    assert not honest.untrained.is_better


def test_untrained_model_has_a_new_seed_each_time_that_repeats_it(traced_run: Path) -> None:
    traced, run = read_traced(traced_run / "graph"), RunFolder.open(traced_run)
    first, second = (load_graph_models(traced, run) for _ in range(2))
    assert first.seed != second.seed
    torch.manual_seed(first.seed)
    models = (first.untrained, build_model(traced), second.untrained)
    parameters = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(parameters[0], parameters[1])
    assert not torch.equal(parameters[0], parameters[2])


def test_reference_of_another_model_makes_the_correction_more_exact(honest: TextScore) -> None:
    torch.manual_seed(0)
    traced = trace_architecture(peeking_model, peeking_model.Config(V, T, 0))  # type: ignore[arg-type]
    scorer = build_scorer(build_model(traced), T)
    rng, ones = np.random.default_rng(1), np.ones(V, np.int64)
    found = score_text(scorer, scorer, make_texts(V), ones, 0, lambda *_: None, honest.losses + 1e-3, rng)
    assert found.correction.stderr < honest.correction.stderr / 10
