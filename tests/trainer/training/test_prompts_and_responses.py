"""Training on pairs: targets of prompts are ignored, those of responses are learned, and runs resume exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.interrupted_runs import train
from tests.support.metrics_lines import lines
from tests.support.tiny import TINY
from trainer.checkpoint.store import load_model
from trainer.data.corpora import Document, open_corpus
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.loader import IGNORE_INDEX, PACKINGS, iterate_in_order, load_packing
from trainer.data.shards import PROMPT_BIT
from trainer.data.splits import cut_document
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import CorpusError

pytestmark = pytest.mark.processes

NAMES = ["ada", "bob", "eve", "mallory", "trent"]


def pairs(count: int = 400) -> list[dict[str, str]]:
    chance = random.Random(2)
    questions = (chance.choices(NAMES, k=chance.randint(2, 5)) for _ in range(count))
    return [
        {"prompt": f"{number}. Reverse: {' '.join(names)}\n", "response": " ".join(reversed(names))}
        for number, names in enumerate(questions)
    ]


def write(file: Path, records: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"files:{file}"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("pairs")
    return prepare_dataset(write(folder / "pairs.jsonl", pairs()), "bpe:300", folder / "dataset")


def documents(dataset: Dataset, split: str = "train") -> list[np.ndarray]:
    """Return each document's tokens with `PROMPT_BIT`, without the end of text before it."""
    stream = dataset.open_stream(split)
    tokens = stream.read_tokens(0, len(stream))
    return [part[1:] for part in np.split(tokens, np.flatnonzero(tokens == dataset.tokenizer.end_of_text))[1:]]


def test_pair_splits_prompt_and_response_and_incomplete_ones_are_named(tmp_path: Path) -> None:
    records = [{"prompt": "Wer? ", "response": "Ich ä"}, {"text": "plain"}, {"prompt": "", "response": "x"}]
    found = list(open_corpus(write(tmp_path / "a.jsonl", records)))
    assert [(each.text, each.prompt_length) for each in found] == [("Wer? Ich ä", 5), ("plain", 0), ("x", 0)]
    for record in ({"prompt": "a"}, {"response": "a"}, {"prompt": 1, "response": "a"}):
        with pytest.raises(CorpusError, match=r'a.jsonl, line 1, has no "text", nor a "prompt" with a "response"'):
            list(open_corpus(write(tmp_path / "a.jsonl", [record])))


def test_exactly_prompt_tokens_are_marked(dataset: Dataset) -> None:
    known = {record["prompt"] + record["response"]: record["prompt"] for record in pairs()}
    found = documents(dataset)
    assert len(found) > 300
    for tokens in found:
        given = tokens >= PROMPT_BIT
        ids = np.where(given, tokens - PROMPT_BIT, tokens)
        text = dataset.tokenizer.decode(ids.tolist())
        assert dataset.tokenizer.decode(ids[given].tolist()) == known[text]
        assert ids[given].tolist() == dataset.tokenizer.encode(known[text]), "the prompt alone has other tokens"


def test_cut_pair_starts_with_prompt() -> None:
    document = Document("a", "p" * 700 + " " + "r" * 500, prompt_length=701)
    pieces = list(cut_document(document, 300))
    assert "".join(piece.text for piece in pieces) == document.text
    assert "".join(piece.text[: piece.prompt_length] for piece in pieces) == document.text[:701]


@pytest.mark.parametrize("packing", PACKINGS)
def test_prompt_targets_are_ignored_and_inputs_complete(dataset: Dataset, packing: str) -> None:
    loader = load_packing(packing)(dataset, "train", 8, 64, seed=3)
    for _ in range(5):
        inputs, targets = loader.next_batch()
        assert int(inputs.min()) >= 0
        assert int(inputs.max()) < 300
        learned = targets[:, :-1] != IGNORE_INDEX
        assert torch.equal(targets[:, :-1][learned], inputs[:, 1:][learned]), "targets are inputs one step on"
        ends = inputs[:, 1:] == dataset.tokenizer.end_of_text
        assert bool(learned[ends].all()), "the end of text is learned"
        assert 0.1 < learned.float().mean() < 0.7


def test_step_and_evaluation_average_over_learned_targets(dataset: Dataset, tmp_path: Path) -> None:
    assert train(tmp_path, "--budget", "1steps", "--dataset", dataset.folder) == 0
    (step,) = (row["loss"] for row in lines(tmp_path, "train"))
    # An untrained model predicts about 300 tokens with equal probability.
    assert step == pytest.approx(np.log(300), rel=0.1)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["final_loss"] == pytest.approx(dev_loss(dataset, tmp_path), rel=1e-5)


def dev_loss(dataset: Dataset, run: Path) -> float:
    """Return the loss of the responses, in nats per token, on the part of dev that `TINY` evaluates."""
    trained = load_model(run)
    text = torch.from_numpy(load_tokenizer(run / "tokenizer.json").byte_lengths()) > 0
    length, tokens = (int(TINY[TINY.index(f"--train.{name}") + 1]) for name in ("sequence-length", "dev-tokens"))
    nats: list[torch.Tensor] = []
    with torch.no_grad():
        for inputs, targets in iterate_in_order(dataset, "dev", 1, length, tokens // length):
            log, y = torch.log_softmax(trained(inputs).float(), -1)[0], targets[0]
            is_counted = (y != IGNORE_INDEX) & text[y.clamp(min=0)]
            nats.append(-log[is_counted, y[is_counted]])
    return float(torch.cat(nats).double().mean())
