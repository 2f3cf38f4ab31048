"""Estimates before a run: size, tokens in the budget, and expected start and end."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from leaderboard.models import Entry, Run
from leaderboard.submissions import intake, run_estimates
from scheduler.models import Node

SMOKE: dict[str, Any] = {
    "passed": True,
    "checks": [
        {"name": "starts", "passed": True, "text": "it imports"},
        {"name": "causal", "passed": False, "text": "It looks <ahead>."},
    ],
    "hints": ["It starts at 14 nats a token."],
    "file": "trainer/models/idea.py",
    "line": 7,
    "code": "x = <b>",
    "parameters": 1.384e9,
    "parameters_embedding": 0.654e9,
    "flops_per_token": 5.28e9,
    "tokens_per_step": 524288,
}


@pytest.fixture
def smoke_tested_entry(proposed_entry: Entry) -> Entry:
    proposed_entry.smoke, proposed_entry.smoke_sentence = SMOKE, "It imports, fits, learns and sees no later token."
    proposed_entry.save()
    return proposed_entry


@pytest.mark.parametrize(
    ("budget", "labels", "tokens"),
    [
        ("3B-tokens", [], 3e9),
        ("500steps", [], 500 * 524288),
        ("1e19flops", [], 1e19 / 5.28e9),
        ("24h", ["1xh100"], 86400 * 0.4 * 989e12 / 5.28e9),
        ("24h", [], None),
    ],
)
def test_estimated_tokens_follow_from_budget(
    budget: str, labels: list[str], tokens: float | None, smoke_tested_entry: Entry
) -> None:
    smoke_tested_entry.track.budget, smoke_tested_entry.track.needs_labels = budget, labels
    estimate = run_estimates.estimate_run(smoke_tested_entry)
    assert estimate.tokens == (pytest.approx(tokens) if tokens else None)


def test_estimated_end_follows_from_queue(smoke_tested_entry: Entry, capable_node: Node, maintainer: User) -> None:
    estimate = run_estimates.estimate_run(smoke_tested_entry)
    assert estimate.begins_at is not None
    assert estimate.ends_at == estimate.begins_at + timedelta(seconds=smoke_tested_entry.track.expected_seconds)
    assert not Run.objects.exists(), "the estimate creates no run"
    now = timezone.now()
    assert estimate.describe(now).startswith(
        "1.38\u00a0B parameters (654\u00a0M of them embeddings), 5.28\u00a0×\u00a010⁹ FLOPs a token, about 10.5\u00a0M "
    )
    intake.approve_entry(smoke_tested_entry, smoke_tested_entry.sha, maintainer)
    queued_estimate = run_estimates.estimate_run(smoke_tested_entry)
    assert (queued_estimate.seconds, queued_estimate.ends_at is None) == (estimate.seconds, False)
    assert queued_estimate.to_dict()["ends_at"] is not None


def test_entry_page_shows_smoke_result_and_estimate_escaped(
    smoke_tested_entry: Entry, capable_node: Node, client: Client
) -> None:
    page = re.sub(r"\n *", " ", client.get(smoke_tested_entry.get_absolute_url()).content.decode())
    assert "It imports, fits, learns and sees no later token." in page
    assert "<strong>1.38\u00a0B</strong>" in page
    assert "trained by, if it is queued now" in page
    assert "trainer/models/idea.py:7 x = &lt;b&gt;" in page
    assert "<b>" not in page.partition('id="smoke"')[2].partition("</section>")[0]
