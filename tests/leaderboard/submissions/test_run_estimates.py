"""Before a run begins the page says how large it is, how much it will read, and about when it is done."""

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
def smoked(idea: Entry) -> Entry:
    idea.smoke, idea.smoke_sentence = SMOKE, "It imports, fits, learns and sees no later token."
    idea.save()
    return idea


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
def test_the_tokens_follow_from_the_budget(budget: str, labels: list[str], tokens: float | None, smoked: Entry) -> None:
    smoked.track.budget, smoked.track.needs_labels = budget, labels
    found = run_estimates.estimate_run(smoked)
    assert found is not None
    assert found.tokens == (pytest.approx(tokens) if tokens else None)
    assert found.parameters_rest == pytest.approx(0.73e9)


def test_past_runs_of_the_track_say_how_fast_its_machines_are(smoked: Entry, run: Run) -> None:
    Run.objects.update(train_flops=6e15, train_seconds=3.0, finished_at=timezone.now())
    assert run_estimates.get_track_flops(smoked.track) == 2e15


def test_when_it_would_be_done_follows_from_the_queue(smoked: Entry, able: Node, maintainer: User) -> None:
    found = run_estimates.estimate_run(smoked)
    assert found is not None
    assert found.begins_at is not None
    assert found.ends_at == found.begins_at + timedelta(seconds=smoked.track.expected_seconds)
    assert not Run.objects.exists(), "it is only thought of"
    now = timezone.now()
    assert found.describe(now).startswith(
        "1.38\u00a0B parameters (654\u00a0M of them embeddings), 5.28\u00a0×\u00a010⁹ FLOPs a token, about 10.5\u00a0M "
    )
    intake.approve_entry(smoked, smoked.sha, maintainer)
    queued = run_estimates.estimate_run(smoked)
    assert queued is not None
    assert (queued.seconds, queued.ends_at is None) == (found.seconds, False)
    assert queued.to_dict()["ends_at"] is not None


def test_without_a_node_it_says_what_is_missing(smoked: Entry) -> None:
    found = run_estimates.estimate_run(smoked)
    assert found is not None
    assert (found.ends_at, "none is online" in found.waits) == (None, True)


def test_there_is_none_before_a_smoke_run(idea: Entry) -> None:
    assert run_estimates.estimate_run(idea) is None


def test_the_page_shows_what_was_found_as_text(smoked: Entry, able: Node, client: Client) -> None:
    page = re.sub(r"\n *", " ", client.get(smoked.get_absolute_url()).content.decode())
    assert "It imports, fits, learns and sees no later token." in page
    assert "<strong>1.38\u00a0B</strong>" in page
    assert "trained by, if it is queued now" in page
    assert "trainer/models/idea.py:7 x = &lt;b&gt;" in page
    assert "<b>" not in page.partition('id="smoke"')[2].partition("</section>")[0]


def test_once_it_trains_the_page_estimates_no_more(smoked: Entry, run: Run, client: Client) -> None:
    Run.objects.update(state=Run.State.TRAINING)
    page = re.sub(r"\n *", " ", client.get(smoked.get_absolute_url()).content.decode())
    assert "tokens in the budget" not in page


def test_the_api_has_both(smoked: Entry, client: Client) -> None:
    found = client.get(f"/api/v1/entries/{smoked.pk}").json()
    assert found["smoke"]["parameters"] == found["estimate"]["parameters"] == SMOKE["parameters"]
    assert found["smoke_sentence"] == smoked.smoke_sentence
