"""The simulated flood of pull requests: its shares, its curves, and a small one on a real PostgreSQL and Redis."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from benchmarks.flood.authors import BROKEN, COPIES, GAINS, draw_ideas
from benchmarks.flood.curves import TrackCurves, load_ladder
from trainer.scoring.multiplier import futility


def test_flood_has_its_shares_and_bursts() -> None:
    ideas = draw_ideas(44, 2_048, seed=1)
    counts = Counter(idea.kind for idea in ideas)
    assert len(ideas) == 2_048
    assert counts["gain"] == pytest.approx(GAINS * 2_048, rel=0.3)
    assert counts["copy"] + counts["near"] == pytest.approx(COPIES * 2_048, rel=0.15)
    assert counts["broken"] + counts["cap"] == pytest.approx(BROKEN * 2_048, rel=0.15)
    assert all(1.02 <= idea.multiplier <= 1.3 for idea in ideas if idea.kind == "gain")
    assert any(idea.ahead for idea in ideas if idea.kind in ("copy", "near"))
    assert any(idea.is_gain for idea in ideas if idea.kind == "near")
    assert max(Counter(int(idea.at // 86_400) for idea in ideas).values()) >= 200
    assert all(idea.original < idea.number for idea in ideas if idea.kind == "copy")
    assert draw_ideas(44, 2_048, seed=1) == ideas


def test_flood_losses_at_looks_lie_about_the_true_multiplier() -> None:
    curves, ladder = TrackCurves("playground-h100", seed=1), load_ladder()[0]
    for multiplier in (0.8, 1.2):
        looks = [curves.draw_looks(multiplier, 1, late=False)[1 / 2] for _ in range(200)]
        ahead = (np.mean(looks) - curves.get_twin_loss(1 / 2, 1)) / float(ladder.slope_at(np.log(1 / 2)))
        assert np.exp(ahead) == pytest.approx(multiplier, rel=0.03)
        ends = np.mean([curves.draw_end(multiplier) for _ in range(200)])
        assert ends == pytest.approx(float(ladder.loss_at(np.log(multiplier))), abs=0.002)
    assert set(curves.draw_looks(1.0, 1, late=True)) == set(futility.LOOKS)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs PostgreSQL and Redis")
def test_gain_of_a_small_flood_becomes_a_record_and_nothing_is_disputed() -> None:
    code = """
import json, os, django
os.environ |= {"DJANGO_SETTINGS_MODULE": "dailytrain.settings", "LOG_LEVEL": "ERROR", "GITHUB_TOKEN": "t"}
django.setup()
from benchmarks.flood.__main__ import simulate
from benchmarks.flood.authors import Idea
print(json.dumps(simulate([Idea(1, 600.0, 1, "gain", 1.28, ("one",), original=1)], 1, 1, "policies")))
"""
    found = json.loads(subprocess.run((".ci/with_services", sys.executable, "-c", code), stdout=-1, check=True).stdout)
    assert found["gains_found"] == found["gains"] == 1
    assert found["records"] >= 1
    assert found["runs_disputed"] == found["false_records"] == found["without_verdict"] == 0


def test_correction_finds_what_a_cheat_gains_and_nothing_in_honest_scores() -> None:
    curves = TrackCurves("playground-h100", seed=1)
    gain, found = curves.draw_correction(0.2)
    assert found.nats == pytest.approx(gain, abs=4 * found.stderr)
    assert found.is_beyond_rounding
    gain, found = curves.draw_correction(0.0)
    assert gain == 0
    assert not found.is_beyond_rounding
