"""The command `dailytrain draw`: a secret draws the text that is scored, from documents that nothing trains on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.cli.main import main
from trainer.data.dataset import Dataset, iterate_test_documents, prepare_dataset
from trainer.scoring.heldout_text import load_corpus, load_test_split

SECRETS = ("1" * 64, "2" * 64)
LIMIT = 400  # tokens


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("draw")
    texts = ({"text": f"Book {number}. " + " ".join(str(number * word) for word in range(60))} for number in range(900))
    (folder / "books.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    return prepare_dataset(f"files:{folder}/books.jsonl", "bpe:300", folder / "dataset")


def draw(dataset: Dataset, folder: Path, secret: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (folder / "secret").write_text(secret)
    options = ["--secret", str(folder / "secret"), "--limit-tokens", str(LIMIT), "--out", str(folder / "test.jsonl")]
    assert main(["draw", str(dataset.folder), *options, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def read_drawn(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()]


def test_secret_draws_the_same_sample_of_the_test_split_each_time(dataset, tmp_path, capsys):
    records, samples = [], []
    for secret in (*SECRETS, SECRETS[0]):
        records.append(draw(dataset, tmp_path, secret, capsys))
        samples.append(read_drawn(tmp_path))
    reserved = {document.text for document in iterate_test_documents(dataset)}
    assert records[0] == records[2]
    assert set(samples[0]) != set(samples[1])
    assert all(set(sample) < reserved for sample in samples)
    assert records[0]["commitment"] == hashlib.sha256(bytes.fromhex(SECRETS[0])).hexdigest()
    assert records[0]["sha256"] == hashlib.sha256((tmp_path / "test.jsonl").read_bytes()).hexdigest()
    assert (records[0]["documents"], records[0]["tokens"], records[0]["dataset"]) == (
        len(samples[0]),
        LIMIT,
        dataset.hash,
    )


def test_drawn_file_is_scored_as_the_first_tokens_of_the_draw(dataset, tmp_path, capsys):
    draw(dataset, tmp_path, SECRETS[0], capsys)
    scored = load_corpus(f"files:{tmp_path}/test.jsonl", dataset.tokenizer, LIMIT)
    texts = [dataset.tokenizer.decode(list(text.tokens)) for text in scored]
    assert all(text.startswith(start) for text, start in zip(read_drawn(tmp_path), texts, strict=True))
    assert sum(len(text.tokens) for text in scored) == LIMIT
    public = load_test_split(dataset, LIMIT)
    assert not np.array_equal(public[0].tokens, scored[0].tokens)


@pytest.mark.parametrize("content", ["short", "g" * 64, ""])
def test_file_without_a_secret_is_refused_in_one_line(dataset, tmp_path, refuse, content):
    (tmp_path / "secret").write_text(content)
    options = ["--secret", str(tmp_path / "secret"), "--out", str(tmp_path / "test.jsonl")]
    assert "holds no secret of a season" in refuse("draw", dataset.folder, *options)
