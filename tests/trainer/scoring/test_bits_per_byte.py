"""Windows of a text, bits per byte and its standard error."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.cli.main import main
from trainer.scoring import items, paired_bootstrap
from trainer.scoring.bits_per_byte import BitsPerByte, estimate_block_stderr, estimate_ratio_stderr
from trainer.scoring.windows import cut_windows

END = 0


def test_bits_per_byte_is_nats_over_bytes_and_ln_2():
    nats = [np.full(10, math.log(2)), np.full(30, 2 * math.log(2))]
    bits = BitsPerByte.from_documents(nats, [20, 50], [np.full(10, 2), np.full(30, 1)])
    assert bits.bits_per_byte == pytest.approx(1.0)
    assert bits.nats_per_token == pytest.approx(70 / 40 * math.log(2))
    assert (bits.tokens, bits.bytes, bits.documents) == (40, 70, 2)


def test_stderr_equals_spread_over_repeated_draws_of_documents():
    rng = np.random.default_rng(3)
    sizes = rng.integers(100, 3000, (2000, 80)).astype(float)
    bits = sizes * (1.2 + 0.2 * rng.normal(size=sizes.shape)) + 50
    spread = (bits.sum(1) / sizes.sum(1)).std()
    estimate = np.mean([estimate_ratio_stderr(b, s) for b, s in zip(bits[:300], sizes[:300], strict=True)])
    assert estimate == pytest.approx(spread, rel=0.05)


def test_stderr_of_one_document_comes_from_its_blocks():
    rng = np.random.default_rng(4)
    drawn = rng.exponential(2, (300, 6400))
    lengths = np.full(6400, 4)
    spread = (drawn.sum(1) / math.log(2) / (4 * 6400)).std()
    estimate = np.mean([estimate_block_stderr(row, lengths) for row in drawn])
    assert estimate == pytest.approx(spread, rel=0.1)


def test_stderr_of_one_token_is_none():
    assert BitsPerByte.from_documents([np.ones(1)], [3], [np.array([3])]).stderr is None


@given(count=st.integers(1, 100), row=st.integers(1, 20))
def test_windows_predict_every_token_once(count, row):
    tokens = np.arange(1, count + 1)
    windows = cut_windows(0, tokens, END, row)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    for window in windows:
        assert len(window.inputs) == len(window.targets) <= row
        assert (window.targets - window.inputs).tolist() == [1] * len(window)
    assert windows[0].inputs[0] == END


# --- paired bootstrap over items, and `dailytrain compare` ------------------------------------------------------------


def write(path, quality: float, seed: int = 1, count: int = 300, size: int = 1000):
    """Write a run's items. Documents and questions have the same difficulty for each run."""
    rng, own = np.random.default_rng(0), np.random.default_rng(seed)
    hard, questions = rng.normal(1.0, 0.2, count), rng.random(count)
    bits = (hard + own.normal(0, 0.01, count) - quality) * size
    suite = [{"task": "piqa", "item": i, "acc": float(q < 0.5 + quality)} for i, q in enumerate(questions)]
    items.write_items(path, [(float(b), size) for b in bits], suite)
    return path


def test_small_difference_is_resolved_despite_document_spread(tmp_path, capsys):
    first, second = write(tmp_path / "a.gz", 0.0, seed=1), write(tmp_path / "b.gz", 0.005, seed=2)
    assert main(["compare", str(first), str(second), "--json"]) == 0
    text, piqa = json.loads(capsys.readouterr().out)["differences"]
    assert (text["task"], text["items"], piqa["task"], piqa["metric"]) == ("bits_per_byte", 300, "piqa", "acc")
    assert text["low"] < -0.005 < text["high"] < 0
    assert text["difference"] == pytest.approx(text["second"] - text["first"])
    assert text["p"] < 0.01
    assert main(["compare", str(first), str(second)]) == 0
    assert "bits_per_byte" in capsys.readouterr().out


def test_run_compared_with_itself_has_no_difference(tmp_path):
    lines = items.read_items(write(tmp_path / "a.gz", 0.1))
    for difference in paired_bootstrap.compare_items(lines, lines):
        assert (difference.difference, difference.low, difference.high, difference.p) == (0, 0, 0, 1)


def test_interval_has_nominal_coverage():
    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(150):
        weights = rng.integers(500, 2000, 60).astype(float)
        first = weights * rng.normal(1, 0.2, 60)
        second = first + weights * rng.normal(0.02, 0.05, 60)
        found = paired_bootstrap.MetricDifference.from_sums("text", "bits", first, second, weights, seed)
        hits += found.low < 0.02 < found.high
    assert 0.88 < hits / 150 <= 1


DOCUMENT = {"task": "bits_per_byte", "item": 0, "bits": 1.0, "bytes": 7}
QUESTION = {"task": "piqa", "item": 0, "acc": 1.0}
INVALID_LINES = [
    {"task": 1},
    *({name: value for name, value in DOCUMENT.items() if name != left_out} for left_out in ("bits", "bytes")),
    *({**DOCUMENT, "bytes": size} for size in (0, -7, "7", None)),
    *({**DOCUMENT, "bits": bits} for bits in ("1", float("nan"), float("inf"), 10**400)),
    *({**QUESTION, "item": number} for number in ("0", None, 0.5)),
    *({**QUESTION, "acc": value} for value in ("1", None, [1], float("nan"))),
    {**QUESTION, "part": 1},
]


def compress(*lines: dict) -> bytes:
    return gzip.compress("\n".join(map(json.dumps, lines)).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no file"),
        (b"no gzip", "does not hold the items"),
        (compress({"task": "copa", "item": 0, "acc": 1}), "no item in common"),
        (compress(DOCUMENT), "different documents"),
        *((compress(line, {**QUESTION, "item": 9}), "does not hold the items") for line in INVALID_LINES),
    ],
)
def test_bad_items_file_is_one_line_error(content, sentence, tmp_path, capsys):
    if content is not None:
        (tmp_path / "b.gz").write_bytes(content)
    assert main(["compare", str(write(tmp_path / "a.gz", 0.1)), str(tmp_path / "b.gz"), "--json"]) == 2
    output, errors = capsys.readouterr()
    assert (output, len(errors.splitlines())) == ("", 1)
    assert sentence in errors
