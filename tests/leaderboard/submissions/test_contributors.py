"""Credit: what an entry builds on, how forms and the API name it, and the verified gain of contributors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from leaderboard import contributors, feeds
from leaderboard.integrations.github import comment_text, front_matter
from leaderboard.models import ApprovalLimits, Confirmation, Entry, PullRequest, Run, Track
from leaderboard.rankings import confirmations
from leaderboard.rankings.standings_store import load_standings
from leaderboard.submissions import intake, policy, stations
from scheduler.models import Event
from tests.leaderboard.charts.test_records_drawn import create_record_entry
from tests.leaderboard.rankings.test_confirmations import create_candidate, finish_confirmations
from tests.leaderboard.submissions.conftest import propose_entry
from tests.support import boards, scene
from tests.support.graph_jobs import SUMMARY, store_graph
from tests.support.pull_request_author import BODY
from tests.support.site_programs import runs as programs

pytestmark = pytest.mark.django_db


@pytest.fixture
def records() -> dict[str, Entry]:
    """Bob's record builds on Ada's, which builds on Eve's entry without a record; Ada has the third, too."""
    track, entries = boards.create_board()
    found = {"idea": entries["Level"]}
    for title, author, multiplier, days, parent in (
        ("First", "ada", 1.2, 9, "idea"),
        ("Second", "bob", 1.32, 6, "First"),
        ("Third", "ada", 1.45, 3, None),
    ):
        found[title] = create_record_entry(track, title, multiplier, days)
        based_on = found[parent] if parent else None
        Entry.objects.filter(pk=found[title].pk).update(author=author, based_on=based_on)
    Entry.objects.filter(pk=found["idea"].pk).update(author="eve")
    load_standings(track)
    return found


def test_contributors_gain_what_their_records_add_to_the_record_before(records: dict[str, Entry]) -> None:
    ada, bob, eve = contributors.list_contributors()
    assert [one.name for one in (ada, bob, eve)] == ["ada", "bob", "eve"]
    assert ada.gain == pytest.approx(1.2 * 1.45 / 1.32, rel=0.06)
    assert bob.gain == pytest.approx(1.32 / 1.2, rel=0.06)
    assert (eve.gain, eve.records) == (1, [])
    assert [credit.entry.title for credit in ada.built_on] == ["Second"], "nobody is credited by a record of their own"
    assert [credit.entry.title for credit in eve.built_on] == ["First", "Second"]
    assert eve.gain_built_on == pytest.approx(1.32, rel=0.06)
    assert ada.gain * bob.gain == pytest.approx(1.45, rel=0.06), "gains multiply to the last record"


def test_contributors_are_people_not_names(records: dict[str, Entry]) -> None:
    impostor = User.objects.create_user("mallory")
    Entry.objects.filter(pk=records["Third"].pk).update(requested_by=impostor)
    Entry.objects.filter(pk=records["Second"].pk).update(kind=Entry.Kind.MAIN)
    assert [one.name for one in contributors.list_contributors()] == ["ada", "ada", "eve"]


def test_user_and_account_of_github_are_one_person(records: dict[str, Entry]) -> None:
    ada = User.objects.create_user("ada-here")
    SocialAccount.objects.create(user=ada, provider="github", uid="7")
    pull = PullRequest.objects.create(repository="trains/daily", number=1, author="ada", author_id=7)
    Entry.objects.filter(pk=records["First"].pk).update(pull_request=pull)
    Entry.objects.filter(pk=records["Third"].pk).update(requested_by=ada)
    (found,) = [one for one in contributors.list_contributors() if one.name == "ada"]
    assert [credit.entry.title for credit in found.records] == ["First", "Third"]
    for own in (policy.match_person("", ada.pk), policy.match_person("7", None)):
        assert own
        assert Entry.objects.filter(own).count() == 2


def test_step_after_a_turned_one_gains_over_the_best_before(records: dict[str, Entry]) -> None:
    create_record_entry(records["First"].track, "Turned", 1.1, 5)
    load_standings(records["First"].track)
    found = contributors.list_contributors()
    assert math.prod(one.gain for one in found) == pytest.approx(1.45, rel=0.06)


def test_entry_with_records_on_two_tracks_counts_once(records: dict[str, Entry]) -> None:
    before = max(credit.gain for credit in contributors.list_contributors()[0].records)
    following = Track.objects.create(slug="next", season=records["First"].track.season, budget="1s", expected_seconds=1)
    Entry.objects.filter(pk=records["First"].pk).update(track=following, sha=records["Third"].sha)
    (ada,) = [one for one in contributors.list_contributors() if one.name == "ada"]
    assert (len(ada.records), ada.gain) == (1, before)


@pytest.mark.parametrize("state", ["withdrawn", "rejected", "unscored"])
def test_entry_that_does_not_stand_is_not_credited(client: Client, records: dict[str, Entry], state: str) -> None:
    fallen = [records["idea"].pk, records["Second"].pk]
    if state == "unscored":
        Run.objects.filter(entry__in=fallen).update(bits_per_byte=None)
    else:
        Entry.objects.filter(pk__in=fallen).update(state=state)
    assert "eve" not in [one.name for one in contributors.list_contributors()]
    assert "Built on by" not in client.get(f"/entries/{records['First'].pk}/").content.decode()


def test_line_of_descent_ends_at_an_entry_that_it_has_seen(records: dict[str, Entry]) -> None:
    Entry.objects.filter(pk=records["idea"].pk).update(based_on=records["Second"])
    line = contributors.list_ancestors(Entry.objects.get(pk=records["Second"].pk))
    assert line == [records["idea"], records["First"]]


def test_page_and_api_show_contributors(client: Client, records: dict[str, Entry]) -> None:
    page = client.get("/contributors/").content.decode()
    assert page.index("ada") < page.index("bob") < page.index("eve")
    assert f'href="/entries/{records["Second"].pk}/"' in page
    rows = client.get("/api/v1/contributors").json()
    assert [row["name"] for row in rows] == ["ada", "bob", "eve"]
    assert rows[1]["records"] == [records["Second"].pk]


def test_entry_shows_its_line_of_descent(client: Client, records: dict[str, Entry]) -> None:
    page = client.get(f"/entries/{records['Second'].pk}/").content.decode()
    assert page.index("Builds on") < page.index("Level") < page.index("First")
    assert "Built on by" in client.get(f"/entries/{records['First'].pk}/").content.decode()
    found = client.get(f"/api/v1/entries/{records['Second'].pk}").json()
    assert (found["based_on"], found["descent"]) == (records["First"].pk, [records["idea"].pk, records["First"].pk])
    assert "It builds on First by ada." in feeds.build_records_feed()


@pytest.mark.sql
def test_record_is_told_to_what_it_builds_on(full_track: Track) -> None:
    idea = scene.create_entry(full_track, "Idea", sha="9" * 40)
    finish_confirmations(create_candidate(full_track, 1.3, based_on=idea), 1.3)
    assert confirmations.find_record_holder(full_track)
    assert "Better, a record, builds on it." in [event.sentence for event in Event.objects.about(idea)]


def test_nearest_earlier_graph_is_proposed_until_the_author_names_one(client: Client, open_track: Track) -> None:
    baseline = store_graph(scene.create_entry(open_track, "main", sha="9" * 40), patterns={"z": 1})
    entries = [propose_entry(open_track, number) for number in (1, 2, 3)]
    for entry, patterns in zip(entries, ("ab", "abcd", "abc"), strict=True):
        summary = {**SUMMARY, "patterns": dict.fromkeys(patterns, 1)}
        entry.graphs.update(baseline_graph=baseline, summary=summary)
    Entry.objects.update(family=entries[0])
    entries[2].refresh_from_db()
    assert contributors.propose_ancestor(entries[2]) is None, "neither has a result"
    for entry in entries[:2]:
        scene.create_run(entry, state=Run.State.FINISHED, bits_per_byte=1.0, trust=Run.Trust.SCORED)
    assert contributors.propose_ancestor(entries[2]) == entries[1], "3 of 4 changes are shared, with the first 2 of 3"
    words = f"based_on: {entries[1].pk}"
    assert words in client.get(f"/entries/{entries[2].pk}/").content.decode()
    assert words in comment_text.describe_entry(entries[2], timezone.now())
    Entry.objects.filter(pk=entries[2].pk).update(based_on=entries[0])
    entries[2].refresh_from_db()
    assert contributors.propose_ancestor(entries[2]) is None
    assert f"It builds on [entry {entries[0].pk}]" in comment_text.describe_entry(entries[2], timezone.now())


# --- naming it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number", "problem"),
    [
        *(("12", 12, ()), ("#12  # theirs", 12, ()), ("", None, ())),
        *(
            (text, None, (f"`based_on` takes the number of an entry, such as 12, not “{text}”.",))
            for text in ("ada", "0")
        ),
    ],
)
def test_form_names_an_entry_by_its_number(value: str, number: int | None, problem: tuple[str, ...]) -> None:
    body = BODY.replace("contact:", f"based on: {value}\ncontact:")
    parsed = front_matter.parse_front_matter(body, {"small": "Small"})
    assert parsed is not None
    assert (parsed.based_on, parsed.problems) == (number, problem)


def test_entry_builds_on_an_earlier_entry_of_another_commit(proposed_entry: Entry) -> None:
    own = scene.create_entry(proposed_entry.track, "Older", sha="1" * 40)
    for number, message in ((proposed_entry.pk, "not an earlier"), (own.pk, "not an earlier"), (999, "no entry 999")):
        with pytest.raises(intake.IntakeError, match=f"based_on: .*{message}"):
            stations.set_ancestor(proposed_entry, number)
    fields = {"season": own.track.season, "budget": "1s", "expected_seconds": 1}
    station, _ = stations.enter_station(own, Track.objects.create(slug="next", **fields), "site")
    stations.set_ancestor(own, proposed_entry.pk)
    station.refresh_from_db()
    assert station.based_on == own.based_on == proposed_entry, "after the approval, on all stations"
    Confirmation.objects.create(entry=own, season=own.track.season, outcome=Confirmation.Outcome.RECORD)
    Entry.objects.filter(pk=own.pk).update(based_on=None)
    stations.set_ancestor(own, proposed_entry.pk)
    assert own.based_on is None, "a confirmed record's is fixed"


def test_maintainer_cannot_choose_an_ancestor_that_is_none(
    client: Client, maintainer: User, proposed_entry: Entry
) -> None:
    later = scene.create_entry(proposed_entry.track, "Later", sha="1" * 40)
    assert later.pk > proposed_entry.pk
    client.force_login(maintainer)
    address = reverse("admin:leaderboard_entry_change", args=[proposed_entry.pk])
    fields = {"title": "Mine", "hypothesis": "", "impact": 0}
    page = client.post(address, {**fields, "based_on": later.pk})
    assert f"based_on: entry {later.pk} is not an earlier entry" in page.content.decode()
    address = reverse("admin:leaderboard_entry_change", args=[later.pk])
    assert client.post(address, {**fields, "based_on": proposed_entry.pk}).status_code == 302
    later.refresh_from_db()
    assert later.based_on == proposed_entry


# --- what agents ask --------------------------------------------------------------------------------------------------


def test_search_by_words_shows_multipliers(client: Client, records: dict[str, Entry]) -> None:
    (row,) = client.get("/api/v1/entries?text=second+BOB").json()["items"]
    assert row["id"] == records["Second"].pk
    assert row["low"] < row["multiplier"] < row["high"]
    assert client.get("/api/v1/entries?text=second+ada").json()["items"] == []


def test_owner_of_a_token_reads_hours_and_places_in_the_queue(client: Client, open_track: Track) -> None:
    headers = {"Authorization": f"Bearer {programs.open_track('ada')}"}
    assert client.get("/api/v1/me").status_code == 401
    fields: dict[str, Any] = {"author": None, "requested_by": User.objects.get(), "state": Entry.State.APPROVED}
    entry = propose_entry(open_track, 1, **fields, policy_approved_at=timezone.now(), policy_hours=1.5)
    other = propose_entry(open_track, 2, author=7, state=Entry.State.APPROVED)
    run = scene.create_run(entry, state=Run.State.WAITING, reason="It waits for its graph.")
    scene.create_run(other, state=Run.State.WAITING)
    ApprovalLimits.objects.update(is_paused=True)
    found = client.get("/api/v1/me", headers=headers).json()
    assert (found["name"], found["hours_a_day"], found["hours_left"], found["is_paused"]) == ("ada", 2, 0.5, True)
    assert found["site_hours_left"] == 1.5
    assert [(each["run"]["id"], each["reason"]) for each in found["waiting"]] == [(run.pk, "It waits for its graph.")]
