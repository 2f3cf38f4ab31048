"""lm-eval's tasks."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import peeking_model
from tests.support.paths import DATA
from tests.support.scored_runs import LENGTH, build_gpt, build_scorer, words, write_run
from trainer.data.tokenizer import load_tokenizer
from trainer.scoring import benchmark_suite, benchmark_tasks, items
from trainer.scoring.core_tasks import SAMPLE_NAMES
from trainer.scoring.lm_eval_model import LmEvalModel

pytestmark = pytest.mark.processes

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
        **{member.file: blimp for member in benchmark_tasks.SUITE["blimp"]},
        "hellaswag/validation.jsonl.gz": hellaswag,
        "lambada_openai/test.jsonl.gz": [{"text": sentence} for sentence in sentences],
    }
    for name, lines in rows.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.writelines(json.dumps(item) + "\n" for item in lines)
    return folder


def score_suite(run: Path, data: Path | None, names: str, limit: int) -> subprocess.CompletedProcess[str]:
    """Score in a separate process, since lm-eval's libraries warn and leave threads."""
    text = run / "text.txt"
    text.write_text(words(1, 200))
    command = [sys.executable, "-m", "trainer.cli", "score", str(run), "--corpus", f"files:{text}", "--json"]
    command += [
        "--items",
        str(run / "items.jsonl.gz"),
        "--suite",
        names,
        "--suite-limit",
        str(limit),
    ]
    command += ["--eval-data", str(data)] if data else []
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_metrics_have_standard_errors_and_missing_data_is_listed(tmp_path):
    run, data = write_run(tmp_path / "run"), write_data(tmp_path / "data")
    (data / "lambada_openai" / "test.jsonl.gz").unlink()
    done = score_suite(run, data, "blimp,lambada_openai,hellaswag", ITEMS)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["suite_missing"] == ["lambada_openai"]
    assert set(record["suite"]) == {"blimp", "hellaswag", "average"}
    assert record["checks"]["suite"].keys() == {"blimp", "hellaswag"}
    for corrections in record["checks"]["suite"].values():
        assert all(pair == [0, 0] for pair in corrections.values()), "causal"
    average, error = record["suite"].pop("average")["normalized"]
    assert average == pytest.approx(
        (2 * record["suite"]["blimp"]["acc"][0] - 1) / 2
        + (record["suite"]["hellaswag"]["acc_norm"][0] - 0.25) / 0.75 / 2
    )
    assert error > 0
    kept = items.read_items(run / "items.jsonl.gz")
    assert len(kept) == 1 + ITEMS * (1 + len(benchmark_tasks.PARADIGMS))
    blimp = [line["acc"] for (task, _, _), line in kept.items() if task == "blimp"]
    assert np.mean(blimp) == pytest.approx(record["suite"]["blimp"]["acc"][0])
    assert all(len(line["log_likelihoods"]) == 4 for (task, _, _), line in kept.items() if task == "hellaswag")
    assert set(record["suite"]["hellaswag"]) == {"acc", "acc_norm"}
    for metrics in record["suite"].values():
        for value, error in metrics.values():
            assert 0 <= value <= 1
            assert error > 0


def test_log_likelihoods_match_the_logits(tmp_path):
    folder = write_run(tmp_path / "run")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    network = build_gpt(tokenizer.vocabulary_size)
    model = LmEvalModel(build_scorer(network), tokenizer, lambda stage, done: None)
    pairs = [(words(i, 3 + 4 * i).strip(), " " + words(50 + i, 1 + i).strip()) for i in range(8)]
    found = model.loglikelihood([Request(pair) for pair in pairs])
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        start, whole = tokenizer.encode(context), tokenizer.encode(context + continuation)
        tail = min(len(whole) - len(start), LENGTH)
        row = torch.tensor(whole[-LENGTH - 1 :])
        with torch.inference_mode():
            logits = network(row[None, :-1])[0, -tail:].double()
        exact = logits.log_softmax(-1).gather(-1, row[-tail:, None])
        assert value == pytest.approx(float(exact.sum()), abs=1e-4)
        assert greedy == bool((logits.argmax(-1) == row[-tail:]).all())


class Request:
    """A request of lm-eval, of which only the arguments are read."""

    def __init__(self, args: tuple) -> None:
        self.args = args


def test_log_likelihoods_without_later_tokens_correct_a_peeker(tmp_path):
    tokenizer = load_tokenizer(write_run(tmp_path / "run") / "tokenizer.json")
    torch.manual_seed(0)
    network = peeking_model.Model(peeking_model.Config(tokenizer.vocabulary_size, LENGTH))
    pairs = [(words(i, 5).strip(), " " + words(50 + i, 3).strip()) for i in range(6)]
    results = []
    for model, replaces in ((network, False), (network, True), (build_gpt(tokenizer.vocabulary_size), True)):
        adapter = LmEvalModel(build_scorer(model), tokenizer, lambda stage, done: None)
        adapter.replaces_later_tokens = replaces
        results.append([value for value, _ in adapter.loglikelihood([Request(pair) for pair in pairs])])
    peeking, corrected, honest = map(np.array, results)
    assert (corrected < peeking - 20).all(), "the model relies on the replaced tokens"
    adapter = LmEvalModel(build_scorer(build_gpt(tokenizer.vocabulary_size)), tokenizer, lambda stage, done: None)
    plain = [value for value, _ in adapter.loglikelihood([Request(pair) for pair in pairs])]
    np.testing.assert_allclose(honest, plain, atol=1e-4)


def test_corrected_metric_is_unbiased_and_its_error_honest():
    rng = np.random.default_rng(0)
    full = [{"doc_id": i, "acc": 1.0, "perplexity": -1.0} for i in range(200)]
    true = [{"doc_id": i, "acc": float(i % 4 > 0), "perplexity": -2.0 - (i % 4)} for i in range(200)]
    values, errors, perplexities = [], [], []
    for _ in range(500):
        alone = [true[i] for i in rng.choice(200, 32, replace=False)]
        plain = {"acc": (1.0, 0.0), "perplexity": (float(np.exp(1)), 0.0)}
        found = benchmark_suite.add_corrections(plain, benchmark_suite.compute_corrections(plain, full, alone))
        values.append(found["acc"][0])
        errors.append(found["acc"][1])
        perplexities.append(found["perplexity"][0])
    assert np.mean(values) == pytest.approx(0.75, abs=0.01)
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.1)
    assert np.mean(perplexities) == pytest.approx(np.exp(3.5), rel=0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_real_benchmarks_are_read_from_local_files(tmp_path):
    data = DATA / "eval"
    if not data.is_dir():
        pytest.skip(f"the benchmarks' files are not at {data} (DAILYTRAIN_DATA)")
    done = score_suite(write_run(tmp_path / "run"), data, ",".join(benchmark_tasks.SUITE), 2)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["suite_missing"] == []
    assert set(record["suite"]) == {*benchmark_tasks.SUITE, "average"}
    assert set(record["suite"]["lambada_openai"]) == {"perplexity", "acc"}


def test_average_subtracts_chance():
    found = {"copa": {"acc": (0.75, 0.02)}, "lambada_openai": {"acc": (0.1, 0.01), "perplexity": (90.0, 3.0)}}
    value, error = benchmark_suite.average_normalized_scores(found)
    assert value == pytest.approx((0.5 + 0.1) / 2)
    assert error == pytest.approx((0.04**2 + 0.01**2) ** 0.5 / 2)
    assert benchmark_suite.average_normalized_scores({}) is None


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_shipped_sample_is_scored_without_evaluation_data(tmp_path):
    done = score_suite(write_run(tmp_path / "run"), None, "blimp_sample,blimp,core_sample", 1)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["suite_missing"] == ["blimp"]
    assert set(record["suite"]) == set(record["suite_seconds"]) == {"blimp_sample", "core_sample"}
    assert set(record["suite"]["core_sample"]) == {"centered", *SAMPLE_NAMES}
    assert record["suite_seconds"]["blimp_sample"] > 0
    kept = [item for task, _, item in items.read_items(tmp_path / "run" / "items.jsonl.gz") if task == "blimp_sample"]
    assert kept == [0] * 4


def test_metric_of_one_question_has_the_largest_error_of_a_share():
    result = {"alias": "one", "acc,none": 1.0, "acc_stderr,none": "N/A", "perplexity,none": 8.0}
    assert benchmark_suite.parse_metrics({**result, "perplexity_stderr,none": "N/A"}) == {"acc": (1.0, 0.5)}


def test_shipped_sample_is_the_start_of_blimp():
    data = DATA / "eval" / "blimp"
    if not data.is_dir():
        pytest.skip(f"BLiMP is not at {data} (DAILYTRAIN_DATA)")
    for name in benchmark_tasks.SAMPLE_PARADIGMS:
        lines = (benchmark_tasks.SHIPPED / "blimp_sample" / f"{name}.jsonl").read_text().splitlines()
        with gzip.open(data / f"{name}.jsonl.gz", "rt") as file:
            original = [json.loads(line) for line in file][: len(lines)]
        assert len(lines) == 150
        for line, row in zip(lines, original, strict=True):
            assert json.loads(line) == {name: row[name] for name in ("sentence_good", "sentence_bad")}


def test_every_task_has_a_metric_for_the_average():
    assert benchmark_tasks.SUITE.keys() == benchmark_suite.HEADLINE.keys()


def test_all_exact_matches_are_answered_again():
    samples = [{"doc_id": number} for number in range(500)]
    for name, count in (("lambada_openai", 500), ("sciq", 32)):
        (part,) = benchmark_suite.SUITE[name]
        chosen = benchmark_suite.choose_items(name, {part.task: samples})[part.task]
        assert len(set(chosen)) == count
