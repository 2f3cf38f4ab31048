"""The maintainers' morning: what needs a person, and nothing else."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from leaderboard.models import ApprovalLimits, Confirmation, Entry, Run, Track
from leaderboard.monitoring import morning
from leaderboard.submissions import policy
from scheduler.models import Event, Node
from tests.leaderboard.submissions.conftest import propose_entry
from tests.support import boards, scene

PAGE = "/admin/leaderboard/entry/morning/"


def list_kinds() -> list[str]:
    return [decision.kind for decision in morning.list_decisions(timezone.now())]


def test_morning_lists_only_what_needs_a_person(open_track: Track) -> None:
    assert list_kinds() == []
    policy.decide_entry(propose_entry(open_track, 1))
    held = propose_entry(open_track, 2, author=2, is_held=True)
    for entry in (held, propose_entry(open_track, 1, author=3), propose_entry(open_track, 4, smoke={"passed": False})):
        policy.decide_entry(entry)
    assert list_kinds() == []
    policy.decide_entry(propose_entry(open_track, 5, kind=Entry.Kind.NOTEBOOK))
    ApprovalLimits.objects.update(site_hours=0.5)
    policy.decide_entry(propose_entry(open_track, 6, author=6))
    assert list_kinds() == ["Budget", "Approval"]


def test_morning_rejects_with_the_prefilled_reason_and_comes_back(open_track: Track, maintainer_client: Client) -> None:
    entry = propose_entry(open_track, 1)
    Entry.objects.update(obstacle=Entry.Obstacle.BEHIND)
    page = maintainer_client.get(PAGE).content.decode()
    reason = html.unescape(re.search(r'name="reason" maxlength="500" required value="([^"]+)"', page)[1])
    assert reason == Entry.Obstacle.BEHIND.label
    reject = reverse("admin:leaderboard_entry_reject", args=[entry.pk])
    assert maintainer_client.post(reject, {"reason": reason, "morning": "1"})["Location"] == PAGE
    entry.refresh_from_db()
    assert (entry.state, entry.reason) == ("rejected", reason)
    assert list_kinds() == []


@pytest.mark.parametrize(
    ("smoke", "obstacle", "reason"),
    [
        ({"passed": True}, "", ""),
        ({"passed": True}, "python", ""),
        ({"passed": True}, "unknown", ""),
        ({"passed": True}, "behind", Entry.Obstacle.BEHIND.label),
        ({"passed": False}, "", "It does not learn."),
    ],
)
def test_morning_prefills_only_faults_as_reasons(
    open_track: Track, maintainer_client: Client, smoke: dict[str, bool], obstacle: str, reason: str
) -> None:
    Track.objects.update(approval=Track.Approval.MAINTAINER)
    propose_entry(open_track, 1, smoke=smoke)
    sentence = "It does not learn." if not smoke["passed"] else "It traces and learns."
    Entry.objects.update(obstacle=obstacle, smoke_sentence=sentence)
    page = html.unescape(maintainer_client.get(PAGE).content.decode())
    assert f'name="reason" maxlength="500" required value="{reason}"' in page


@pytest.mark.parametrize(
    ("kind", "is_traced", "label"),
    [
        ("architecture", True, "Approve"),
        ("architecture", False, "Read"),
        ("open", True, "Read"),
        ("notebook", True, "Read"),
    ],
)
def test_unread_python_on_a_maintainers_track_is_not_approved_in_one_click(
    open_track: Track, kind: str, is_traced: bool, label: str
) -> None:
    Track.objects.update(approval=Track.Approval.MAINTAINER, is_traced=is_traced)
    propose_entry(open_track, 1, kind=kind)
    [decision] = morning.list_decisions(timezone.now())
    assert decision.buttons[0].label.split()[0] == label


def test_morning_settles_a_dispute_in_one_click(open_track: Track, maintainer_client: Client) -> None:
    entry = scene.create_entry(open_track, "Disputed", state=Entry.State.APPROVED)
    run = scene.create_run(entry, state=Run.State.FINISHED, trust=Run.Trust.DISPUTED, bits_per_byte=1.0)
    Event.record("site", run, "Disputed: the replay differs.")
    [decision] = morning.list_decisions(timezone.now())
    settle, rule_out = decision.buttons
    assert decision.why == "Disputed: the replay differs."
    maintainer_client.post(settle.address, settle.fields)
    run.refresh_from_db()
    assert run.trust == Run.Trust.SCORED
    form = maintainer_client.get(rule_out.address).content.decode()
    assert "Disputed: the replay differs.</textarea>" in form
    assert f'<option value="{entry.pk}" selected>' in form


def test_morning_proposes_a_ruling_on_a_family_of_flawed_scores(open_track: Track) -> None:
    first, near = (propose_entry(open_track, number, author=number) for number in (1, 2))
    Entry.objects.update(family=first, state=Entry.State.APPROVED)
    for entry, author in ((first, "ada"), (near, "bea")):
        assert list_kinds() == [], "one author's is no family's"
        Entry.objects.filter(pk=entry.pk).update(author=author)
        scene.create_run(entry, state=Run.State.FINISHED, bits_per_byte=1.0, passes_differ=True)
    assert list_kinds() == ["Ruling"]


def test_morning_shows_a_candidate_that_no_unrelated_node_can_confirm(full_track: Track) -> None:
    entry = scene.create_entry(full_track, "Better", "smear", sha="1" * 40)
    for seed in range(100, 103):
        boards.create_scored_run(entry, 1.4, seed=seed)
    assert list_kinds() == []
    Node.objects.update(trusted=False)
    assert list_kinds() == ["Record"]


def test_morning_shows_a_pause_with_what_waits_and_resumes_it(open_track: Track, maintainer_client: Client) -> None:
    ApprovalLimits.objects.update(is_paused=True)
    policy.decide_entry(propose_entry(open_track, 1))
    [decision] = morning.list_decisions(timezone.now())
    assert decision.why == "Automatic approvals are paused, 1 wait."
    [resume] = decision.buttons
    assert maintainer_client.post(resume.address, resume.fields)["Location"] == PAGE
    assert not ApprovalLimits.load().is_paused


def test_morning_shows_an_incomplete_confirmation_for_a_week(open_track: Track) -> None:
    entry = scene.create_entry(open_track, "Better")
    confirmation = Confirmation.objects.create(entry=entry, season=open_track.season, outcome="incomplete")
    [decision] = morning.list_decisions(timezone.now())
    assert (decision.kind, decision.why) == ("Record", confirmation.get_outcome_display())
    assert morning.list_decisions(timezone.now() + morning.WEEK) == []


def test_morning_shows_fifty_forms_and_links_to_the_others(open_track: Track, maintainer_client: Client) -> None:
    Track.objects.update(approval=Track.Approval.MAINTAINER)
    for number in range(51):
        scene.create_entry(open_track, f"Idea {number}", sha=f"{number:040x}", state=Entry.State.PROPOSED)
    page = maintainer_client.get(PAGE).content.decode()
    assert page.count('name="reason"') == 50
    assert "51 decisions" in page
    assert "All\n  that wait for approval" in page


def test_night_counts_pull_requests_once_and_runs_of_entries_only(open_track: Track) -> None:
    first, second = propose_entry(open_track, 1), propose_entry(open_track, 2)
    assert first.pull_request == second.pull_request
    for purpose, seed in ((Run.Purpose.ENTRY, 1), (Run.Purpose.LADDER, 2)):
        done = {"state": Run.State.FINISHED, "bits_per_byte": 1.0, "finished_at": timezone.now()}
        scene.create_run(first, purpose=purpose, seed=seed, **done)
    night = morning.describe_night(timezone.now())
    assert "1 pull requests and other requests came" in night
    assert "1 runs were scored" in night
