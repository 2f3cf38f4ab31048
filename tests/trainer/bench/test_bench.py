"""`dailytrain bench`: speed and parts of a training step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.tiny import TINY
from trainer.cli import bench


def test_bench_writes_results_trace_and_tables(
    dataset_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", str(dataset_folder), "--out", str(tmp_path), *TINY, "--steps", "2", "--json"]
    assert bench.main(flags) == 0
    content = json.loads(capfd.readouterr().out)
    assert set(content["shares"]) == {*bench.PARTS, "other"}
    assert sum(content["shares"].values()) == pytest.approx(1)
    assert all(0 < content["shares"][part] < 1 for part in bench.PARTS)
    assert content["idle"] is None
    assert content["tokens_per_second"] == pytest.approx(4 * 32 / content["seconds_per_step"])
    assert 0 < content["mfu"] < 1
    assert sum(row["share"] for row in content["operators"]) <= 1 + 1e-9
    assert any(row["name"] == "aten::mm" and row["calls_per_step"] > 1 for row in content["operators"])
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert set(bench.PARTS) <= {event.get("name") for event in trace["traceEvents"]}
    assert json.loads((tmp_path / "bench.json").read_text()) == content
    bench.print_tables(content, bench.Console(width=80))
    assert "backward" in capfd.readouterr().out


def test_overlapping_kernels_count_once() -> None:
    assert bench.compute_union_length([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert bench.compute_union_length([]) == 0
