"""lm-eval's tasks."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import DATA
from tests.support.scored_runs import words, write_run
from trainer.scoring import benchmark_suite, benchmark_tasks, items
from trainer.scoring.core_tasks import SAMPLE_NAMES

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


def score_suite(run: Path, data: Path, names: str, limit: int) -> dict[str, Any]:
    """Score in a separate process, since lm-eval's libraries warn and leave threads; return the record."""
    text = run / "text.txt"
    text.write_text(words(1, 200))
    command = [sys.executable, "-m", "trainer.cli", "score", str(run), "--corpus", f"files:{text}", "--json"]
    command += ["--items", str(run / "items.jsonl.gz"), "--suite", names, "--suite-limit", str(limit)]
    done = subprocess.run([*command, "--eval-data", str(data)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_python")
def test_metrics_have_standard_errors_and_missing_data_is_listed(tmp_path):
    run, data = write_run(tmp_path / "run"), write_data(tmp_path / "data")
    (data / "lambada_openai" / "test.jsonl.gz").unlink()
    record = score_suite(run, data, "blimp,lambada_openai,hellaswag,blimp_sample,core_sample", ITEMS)
    assert record["suite_missing"] == ["lambada_openai"]
    suite = record["suite"]
    average, error = suite.pop("average")["normalized"]
    assert suite.keys() == record["suite_seconds"].keys() == {"blimp", "hellaswag", "blimp_sample", "core_sample"}
    assert record["suite_seconds"]["blimp_sample"] > 0
    corrections = record["checks"]["suite"]
    assert corrections.keys() == suite.keys()
    assert all(pair == [0, 0] for found in corrections.values() for pair in found.values()), "causal"
    normalized = [2 * suite[name]["acc"][0] - 1 for name in ("blimp", "blimp_sample")]
    normalized.append((suite["hellaswag"]["acc_norm"][0] - 0.25) / 0.75)
    assert average == pytest.approx(np.mean(normalized)), "without CORE, which is centered by itself"
    assert error > 0
    assert set(suite["hellaswag"]) == {"acc", "acc_norm"}
    for value, error in (*suite["blimp"].values(), *suite["hellaswag"].values()):
        assert 0 <= value <= 1
        assert error > 0
    assert set(suite["core_sample"]) == {"centered", *SAMPLE_NAMES}
    kept = items.read_items(run / "items.jsonl.gz")
    blimp = [line["acc"] for (task, _, _), line in kept.items() if task == "blimp"]
    assert len(blimp) == ITEMS * len(benchmark_tasks.PARADIGMS)
    assert np.mean(blimp) == pytest.approx(suite["blimp"]["acc"][0])
    assert all(len(line["log_likelihoods"]) == 4 for (task, _, _), line in kept.items() if task == "hellaswag")
    assert [item for task, _, item in kept if task == "blimp_sample"] == [*range(ITEMS)] * 4


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
    record = score_suite(write_run(tmp_path / "run"), data, ",".join(benchmark_tasks.SUITE), 2)
    assert record["suite_missing"] == []
    assert set(record["suite"]) == {*benchmark_tasks.SUITE, "average"}
    assert set(record["suite"]["lambada_openai"]) == {"perplexity", "acc"}


def test_average_subtracts_chance():
    assert benchmark_tasks.SUITE.keys() == benchmark_suite.HEADLINE.keys(), "each task has a metric for it"
    found = {"copa": {"acc": (0.75, 0.02)}, "lambada_openai": {"acc": (0.1, 0.01), "perplexity": (90.0, 3.0)}}
    value, error = benchmark_suite.average_normalized_scores(found)
    assert value == pytest.approx((0.5 + 0.1) / 2)
    assert error == pytest.approx((0.04**2 + 0.01**2) ** 0.5 / 2)
    assert benchmark_suite.average_normalized_scores({}) is None


def test_metric_of_one_question_has_the_largest_error_of_a_share():
    result = {"alias": "one", "acc,none": 1.0, "acc_stderr,none": "N/A", "perplexity,none": 8.0}
    assert benchmark_suite.parse_metrics({**result, "perplexity_stderr,none": "N/A"}) == {"acc": (1.0, 0.5)}


def test_all_exact_matches_are_answered_again():
    samples = [{"doc_id": number} for number in range(500)]
    for name, count in (("lambada_openai", 500), ("sciq", 32)):
        (part,) = benchmark_suite.SUITE[name]
        chosen = benchmark_suite.choose_items(name, {part.task: samples})[part.task]
        assert len(set(chosen)) == count
