"""Every track template against the cards that it asks for."""

from __future__ import annotations

import pytest

from benchmarks import track_sizes
from leaderboard.models import Track
from leaderboard.schedule.track_templates import TEMPLATES, compute_template_size
from scheduler.matching import parse_labels
from trainer.accounting.training_size import compute_model_size, estimate_memory
from trainer.scoring.benchmark_suite import SUITE


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_fits_the_memory_of_its_card(name: str) -> None:
    template = TEMPLATES[name]
    memory = estimate_memory(compute_template_size(template), template["config"])
    assert sum(memory.values()) <= parse_labels(tuple(template["needs_labels"])).gpu_memory_bytes, memory


def test_tuning_template_fits_rwkv5_of_1_5_billion() -> None:
    template = TEMPLATES["tune-1b5-2x24gb"]
    size = compute_model_size({"arch": "rwkv5-1b5"}, vocabulary_size=65_536)
    assert size is not None
    assert sum(estimate_memory(size, template["config"]).values()) < 24e9


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_has_devices_suite_seconds_and_ladder(name: str) -> None:
    template = TEMPLATES[name]
    needs = parse_labels(tuple(template["needs_labels"]))
    assert template["config"]["devices"] == needs.gpus, "a larger node uses no more"
    assert set(template["suite"]) <= set(SUITE)
    assert template["expected_seconds"] > 0
    if template.get("trial"):
        assert "ladder" not in template, "smaller models would stand on it"
    elif name != "long-run-8x80gb":
        assert 1 in template["ladder"]["rungs"]
        assert template["ladder"]["seeds"] >= 2, "sigma is estimated from replicates"


@pytest.mark.parametrize(("name", "label"), [("night-h100", "1xh100"), ("night-h200", "1xh200")])
def test_night_names_its_gpu_and_feeds_the_monthly_train(name: str, label: str) -> None:
    assert label in TEMPLATES[name]["needs_labels"]
    assert (TEMPLATES[name]["nightly"], TEMPLATES[name]["monthly"]) == (True, 3)


def test_pull_request_track_takes_one_to_three_h100_hours() -> None:
    template = TEMPLATES["playground-h100"]
    assert template["kind"] == Track.Kind.PLAYGROUND
    assert 3600 <= template["expected_seconds"] * template["config"]["devices"] <= 3 * 3600


def test_written_table_is_the_computed_one() -> None:
    assert track_sizes.FILE.read_text() == track_sizes.render_table()
