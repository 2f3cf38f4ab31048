"""The first confirmed record above a bounty's goal claims it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard.models import Bounty, Track
from leaderboard.rankings import bounties
from scheduler.models import Event
from tests.leaderboard.rankings.test_confirmations import confirm, entry

pytestmark = pytest.mark.django_db


@pytest.fixture
def track(full_track: Track) -> Track:
    return full_track


def offer(track: Track, above: float = 1.1, **fields: object) -> Bounty:
    return Bounty.objects.create(track=track, above=above, reward="A railway lamp", **fields)


def test_the_first_record_above_the_goal_claims_it(track: Track) -> None:
    bounty, higher = offer(track), offer(track, 3.0)
    winner = entry(track, 1.3)
    confirm(winner, 1.3)
    bounty.refresh_from_db()
    higher.refresh_from_db()
    assert (bounty.state, bounty.claimed_by) == ("claimed", winner)
    assert bounty.multiplier == pytest.approx(1.3, rel=0.05)
    assert bounty.claimed_at
    assert higher.state == "open"
    said = Event.objects.about(winner).filter(sentence__startswith="It claims the bounty CM > 1.1 with 1.").get()
    assert said.sentence.endswith("A railway lamp")
    second = entry(track, 1.6, "Second")
    confirm(second, 1.6)
    bounty.refresh_from_db()
    assert bounty.claimed_by == winner


def test_a_candidate_that_is_not_confirmed_claims_nothing(track: Track) -> None:
    bounty = offer(track, 1.001)
    confirm(entry(track, 1.5, "Overtrained"), 1.0)
    confirm(entry(track, 1.01, "Level"), 1.01)
    bounty.refresh_from_db()
    assert bounty.state == "open"


def test_one_bounty_goes_to_one_entry_however_many_come_at_once(track: Track) -> None:
    bounty = offer(track)
    first, second = entry(track, 1.3, "First"), entry(track, 1.4, "Second")
    stale = Bounty.objects.get(pk=bounty.pk)
    assert bounties.award_bounty(bounty, first, 1.3)
    assert not bounties.award_bounty(stale, second, 1.4)
    bounty.refresh_from_db()
    assert bounty.claimed_by == first


def test_a_record_from_before_the_bounty_does_not_claim_it(track: Track) -> None:
    confirm(entry(track, 1.3), 1.3)
    bounty = offer(track)
    Event.record("site", track, "Something happened.")
    assert Bounty.objects.open().get() == bounty


def test_one_that_is_withdrawn_cannot_be_claimed_until_it_is_offered_again(track: Track) -> None:
    bounty = offer(track)
    assert bounties.withdraw_bounty(bounty, "mara")
    assert not bounties.withdraw_bounty(bounty, "mara")
    first = entry(track, 1.3)
    assert not bounties.award_bounty(bounty, first, 1.3)
    assert bounties.reopen_bounty(bounty, "mara")
    assert bounties.award_bounty(bounty, first, 1.3)
    assert bounties.reopen_bounty(bounty, "mara")
    bounty.refresh_from_db()
    assert (bounty.state, bounty.claimed_by, bounty.multiplier) == ("open", None, None)


def test_the_board_shows_them_and_who_claimed_them(track: Track, client: Client) -> None:
    offer(track, 1.05, sponsor="Cellar Computing", link="https://example.org/terms")
    offer(track, 1.02, state="withdrawn")
    page = client.get(track.get_absolute_url()).content.decode()
    assert "CM &gt; 1.05" in page
    assert "A railway lamp" in page
    assert "Cellar Computing" in page
    assert "CM &gt; 1.02" not in page
    winner = entry(track, 1.3)
    confirm(winner, 1.3)
    page = " ".join(client.get(track.get_absolute_url()).content.decode().split())
    assert f'Claimed by <a href="{winner.get_absolute_url()}">' in page


def test_a_maintainer_offers_and_withdraws_them_in_the_admin(track: Track, admin_client: Client) -> None:
    values = {"track": track.pk, "above": "1.05", "reward": "A railway lamp", "sponsor": "", "link": ""}
    assert admin_client.post("/admin/leaderboard/bounty/add/", values).status_code == 302
    bounty = Bounty.objects.get()
    assert Event.objects.about(bounty).get().actor == User.objects.get(is_superuser=True).username
    asked = {"action": "withdraw", "_selected_action": [bounty.pk]}
    assert admin_client.post("/admin/leaderboard/bounty/", asked).status_code == 302
    bounty.refresh_from_db()
    assert bounty.state == "withdrawn"
    assert admin_client.post("/admin/leaderboard/bounty/add/", {**values, "above": "0.5"}).status_code == 200
