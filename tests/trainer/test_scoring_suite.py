"""lm-eval's tasks, asked through the door."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scoring_models import needs_sandbox, words, write_run

from trainer.data.tokenizer import Tokenizer
from trainer.sandbox import driver
from trainer.scoring import suite
from trainer.scoring.benchmarks import DoorModel
from trainer.scoring.door import Door
from trainer.scoring.logits import predictions
from trainer.scoring.runs import Run

pytestmark = [needs_sandbox, pytest.mark.timeout(300)]

ITEMS = 6


def write_data(folder: Path) -> Path:
    """A few made-up items of each task, in the files' own format."""
    sentences = [words(i, 6).strip() for i in range(2 * ITEMS)]
    blimp = [{"sentence_good": sentences[i], "sentence_bad": sentences[-i - 1]} for i in range(ITEMS)]
    hellaswag = [
        {
            "ind": i,
            "activity_label": "Reading",
            "ctx_a": words(i, 40).strip(),
            "ctx_b": "then",
            "ctx": "",
            "endings": sentences[i : i + 4],
            "label": str(i % 4),
        }
        for i in range(ITEMS)
    ]
    rows = {
        **{member.file: blimp for member in suite.SUITE["blimp"]},
        "hellaswag/validation.jsonl.gz": hellaswag,
        "lambada_openai/test.jsonl.gz": [{"text": sentence} for sentence in sentences],
    }
    for name, items in rows.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps(item) + "\n" for item in items)
    return folder


def score_suite(run: Path, data: Path, names: str, limit: int) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as always: lm-eval's libraries warn and leave threads behind."""
    text = run / "text.txt"
    text.write_text(words(1, 200))
    command = [sys.executable, "-m", "trainer.scoring", str(run), "--corpus", f"files:{text}", "--json"]
    command += ["--model-source", str(run / "source"), "--suite", names, "--suite-limit", str(limit)]
    environment = {**os.environ, "DAILYTRAIN_EVAL_DATA": str(data)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_every_metric_has_a_standard_error_and_missing_data_is_named(tmp_path):
    run, data = write_run(tmp_path / "run"), write_data(tmp_path / "data")
    (data / "lambada_openai" / "test.jsonl.gz").unlink()
    done = score_suite(run, data, "blimp,lambada_openai,hellaswag", ITEMS)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["suite_missing"] == ["lambada_openai"]
    assert set(record["suite"]) == {"blimp", "hellaswag"}
    assert set(record["suite"]["hellaswag"]) == {"acc", "acc_norm"}
    for metrics in record["suite"].values():
        for value, error in metrics.values():
            assert 0 <= value <= 1
            assert error > 0


def test_log_likelihoods_are_those_of_the_logits(tmp_path):
    folder = write_run(tmp_path / "run")
    run, tokenizer = Run.open(folder), Tokenizer.load(folder / "tokenizer.json")
    with Door(run, driver("bubblewrap"), model_source=folder / "source") as door:
        door.wait()
        model = DoorModel(door, tokenizer, lambda stage, done: None)
        pairs = [(words(i, 3 + 4 * i).strip(), " " + words(50 + i, 1 + i).strip()) for i in range(8)]
        found = model.loglikelihood([Request(pair) for pair in pairs])
        for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
            start, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
            tail = min(len(whole) - len(start), run.sequence_length)
            row = np.array(whole[-run.sequence_length - 1 :])
            logits = door.ask(row[None, :-1])[0, -tail:]
            exact = predictions(logits, row[-tail:])
            assert value == pytest.approx(exact.log_probabilities.sum(), abs=1e-4)
            assert greedy == exact.greedy.all()
        rolled = model.loglikelihood_rolling([Request((words(3, 60),))])
        assert rolled[0] < 0
        text = model.generate_until([Request((words(3, 60), {"until": ["."], "max_gen_toks": 5}))])
        assert "." not in text[0]
        assert text == model.generate_until([Request((words(3, 60), {"until": "none", "max_gen_toks": 5}))])


class Request:
    """What lm-eval hands to a model: its arguments are all that is read."""

    def __init__(self, args: tuple) -> None:
        self.args = args


def test_real_benchmarks_are_read_from_local_files(tmp_path):
    data = Path(os.environ.get("DAILYTRAIN_DATA") or Path(__file__).parents[3] / "shared" / "data") / "eval"
    if not data.is_dir():
        pytest.skip(f"the benchmarks' files are not at {data} (DAILYTRAIN_DATA)")
    done = score_suite(write_run(tmp_path / "run"), data, "blimp,lambada_openai,hellaswag", 3)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["suite_missing"] == []
    assert set(record["suite"]["lambada_openai"]) == {"perplexity", "acc"}
