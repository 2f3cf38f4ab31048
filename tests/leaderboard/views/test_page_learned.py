"""The page of hypotheses and verdicts."""

from __future__ import annotations

import pytest
from django.test import Client

from leaderboard.models import Entry, Run, Standing, StandingsTable


@pytest.mark.stored_standings
@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.05, 1.2, "Better than the baseline"),
        (0.8, 0.95, "Worse than the baseline"),
        (0.95, 1.1, "No difference found"),
        (None, None, "Not compared"),
    ],
)
def test_scored_hypothesis_has_the_verdict_of_its_interval(
    run: Run, client: Client, low: float | None, high: float | None, verdict: str
) -> None:
    Entry.objects.filter(pk=run.entry_id).update(hypothesis="Keys see one token back.")
    table = StandingsTable.objects.get_or_create(track=run.track, axis="flops")[0]
    middle = None if low is None or high is None else (low + high) / 2
    fields = {
        "multiplier": middle,
        "multiplier_low": low,
        "multiplier_high": high,
        "position": 0,
        "trust": "scored",
        "bits_per_byte": 1.2,
    }
    Standing.objects.create(table=table, entry=run.entry, latest_run=run, search_text="", **fields)
    page = client.get("/learned/").content.decode()
    assert "Keys see one token back." in page
    assert f"<td>{verdict}</td>" in page


def test_untrained_or_infrastructure_failed_hypothesis_is_not_listed(run: Run, client: Client) -> None:
    Entry.objects.filter(pk=run.entry_id).update(hypothesis="Not known yet.")
    assert "No hypothesis has a verdict yet." in client.get("/learned/").content.decode()
    Run.objects.filter(pk=run.pk).update(state="failed", cause="infrastructure")
    assert "No hypothesis has a verdict yet." in client.get("/learned/").content.decode()
