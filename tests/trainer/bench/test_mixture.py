"""`benchmarks/mixture.py` reads multipliers in FLOPs and in CPU-seconds off finished runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import mixture
from benchmarks.contenders.base import Size


def test_mixture_of_equal_quality_is_slower_in_seconds_by_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At equal loss per FLOP, the multiplier in seconds is the ratio of the seconds of a FLOP."""
    size = Size(1, 64, 1e9)
    monkeypatch.setattr(mixture, "SIZE", size)
    monkeypatch.setattr(mixture, "measure_cpu_seconds", lambda entries, *_: {e.name: {"median": 1.0} for e in entries})
    runs = [
        {"entry": entry, "seed": seed, "flops": 1e12 * share, "bits_per_byte": 2 - 0.2 * math.log(share) + 1e-4 * seed}
        for entry, shares in (("gpt", (0.5, 1, 2)), ("moe", (1,)))
        for share in shares
        for seed in (1, 2, 3)
    ]
    (tmp_path / "runs.json").write_text(json.dumps({"runs": runs}))
    assert mixture.main([str(tmp_path / "runs.json")]) == 0
    ratio, flops, seconds = (line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines())
    assert (ratio, flops.partition(" ")[0]) == ("1.000", "1.00")
    # A token of the mixture has more FLOPs here, and as many seconds as one of the baseline.
    assert float(seconds.partition(" ")[0]) > 1.01
