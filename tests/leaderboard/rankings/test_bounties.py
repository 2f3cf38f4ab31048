"""The first confirmed record above a bounty's goal claims it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard.models import Bounty, Track
from leaderboard.rankings import bounties
from scheduler.models import Event
from tests.leaderboard.rankings.test_confirmations import create_candidate, finish_confirmations

pytestmark = pytest.mark.django_db


@pytest.fixture
def track(full_track: Track) -> Track:
    return full_track


def create_bounty(track: Track, above: float = 1.1, **fields: object) -> Bounty:
    return Bounty.objects.create(track=track, above=above, reward="A railway lamp", **fields)


def test_first_record_above_goal_claims_bounty(track: Track) -> None:
    bounty, higher_bounty = create_bounty(track), create_bounty(track, 3.0)
    winner = create_candidate(track, 1.3)
    finish_confirmations(winner, 1.3)
    bounty.refresh_from_db()
    higher_bounty.refresh_from_db()
    assert (bounty.state, bounty.claimed_by) == ("claimed", winner)
    assert bounty.multiplier == pytest.approx(1.3, rel=0.05)
    assert bounty.claimed_at
    assert higher_bounty.state == "open"
    event = Event.objects.about(winner).filter(sentence__startswith="It claims the bounty CM > 1.1 with 1.").get()
    assert event.sentence.endswith("A railway lamp")
    second_entry = create_candidate(track, 1.6, "Second")
    finish_confirmations(second_entry, 1.6)
    bounty.refresh_from_db()
    assert bounty.claimed_by == winner


def test_withdrawn_bounty_is_claimable_after_reopening_by_one_entry(track: Track) -> None:
    finish_confirmations(create_candidate(track, 1.2, "Earlier"), 1.2)
    bounty = create_bounty(track)
    assert Bounty.objects.open().get() == bounty, "a record before it does not claim it"
    assert bounties.withdraw_bounty(bounty, "mara")
    assert not bounties.withdraw_bounty(bounty, "mara")
    first = create_candidate(track, 1.3)
    assert not bounties.award_bounty(bounty, first, 1.3)
    assert bounties.reopen_bounty(bounty, "mara")
    stale = Bounty.objects.get(pk=bounty.pk)
    assert bounties.award_bounty(bounty, first, 1.3)
    assert not bounties.award_bounty(stale, create_candidate(track, 1.4, "Second"), 1.4)
    assert bounties.reopen_bounty(bounty, "mara")
    bounty.refresh_from_db()
    assert (bounty.state, bounty.claimed_by, bounty.multiplier) == ("open", None, None)


def test_track_page_shows_bounties_and_claimant(track: Track, client: Client) -> None:
    create_bounty(track, 1.05, sponsor="Cellar Computing", link="https://example.org/terms")
    create_bounty(track, 1.02, state="withdrawn")
    page = client.get(track.get_absolute_url()).content.decode()
    assert "CM &gt; 1.05" in page
    assert "A railway lamp" in page
    assert "Cellar Computing" in page
    assert "CM &gt; 1.02" not in page
    winner = create_candidate(track, 1.3)
    finish_confirmations(winner, 1.3)
    page = " ".join(client.get(track.get_absolute_url()).content.decode().split())
    assert f'Claimed by <a href="{winner.get_absolute_url()}">' in page


def test_bounty_admin_creates_and_withdraws(track: Track, admin_client: Client) -> None:
    values = {"track": track.pk, "above": "1.05", "reward": "A railway lamp", "sponsor": "", "link": ""}
    assert admin_client.post("/admin/leaderboard/bounty/add/", values).status_code == 302
    bounty = Bounty.objects.get()
    assert Event.objects.about(bounty).get().actor == User.objects.get(is_superuser=True).username
    data = {"action": "withdraw", "_selected_action": [bounty.pk]}
    assert admin_client.post("/admin/leaderboard/bounty/", data).status_code == 302
    bounty.refresh_from_db()
    assert bounty.state == "withdrawn"
    assert admin_client.post("/admin/leaderboard/bounty/add/", {**values, "above": "0.5"}).status_code == 200
