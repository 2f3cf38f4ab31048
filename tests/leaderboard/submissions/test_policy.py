"""Approval by policy, and the chain of tracks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from leaderboard import permissions, runs, tasks
from leaderboard.integrations.github import entry_status
from leaderboard.integrations.github.front_matter import FrontMatter
from leaderboard.integrations.github.sync import explain_withdrawal
from leaderboard.models import (
    ApprovalLimits,
    Entry,
    PullRequest,
    Run,
    Standing,
    StandingsTable,
    TracedGraph,
    Track,
)
from leaderboard.notifications.topics import is_waiting_for_approval
from leaderboard.schedule.track_templates import create_track
from leaderboard.submissions import intake, policy, smoke_tests, stations
from leaderboard.submissions.intake import IntakeError
from scheduler import leases
from scheduler.models import Event, Node
from tests.leaderboard.conftest import Repository
from tests.leaderboard.submissions.conftest import decide, propose_entry
from tests.support import scene
from tests.support.graph_jobs import attach_graph
from tests.support.node_jobs import finish_job


def add_scored_run(entry: Entry) -> None:
    fields = {"state": Run.State.FINISHED, "trust": Run.Trust.SCORED, "bits_per_byte": 1.0, "counts": True}
    scene.create_run(entry, **fields)


def test_traced_entry_is_approved_by_policy_with_event(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    assert decide(entry) == ("approved", "")
    assert (entry.approved_by, entry.policy_hours, entry.runs.count()) == (None, 1.0, 1)
    [event] = Event.objects.about(entry).filter(kind="policy.approved")
    assert event.sentence == "Approved by the policy of Small: 1 GPU-hours."


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"is_held": True}, "held"),
        ({"kind": Entry.Kind.OPEN}, "python"),
        ({"kind": Entry.Kind.NOTEBOOK}, "python"),
        ({"smoke": {"passed": False}}, "smoke"),
        ({"smoke": {"passed": None}}, "smoke"),
        ({"author": None}, "anonymous"),
    ],
)
def test_policy_leaves_entry_with_obstacle_to_maintainer(
    open_track: Track, fields: dict[str, Any], obstacle: str
) -> None:
    entry = propose_entry(open_track, 1, **fields)
    assert decide(entry) == ("proposed", obstacle)
    assert decide(entry) == ("proposed", obstacle)
    assert Event.objects.about(entry).filter(kind=f"policy.{obstacle}").count() == 1


def test_held_entry_is_decided_without_queries_for_copies_and_families(open_track: Track) -> None:
    entry = propose_entry(open_track, 1, is_held=True)
    Entry.objects.update(family=entry)
    with CaptureQueriesContext(connection) as captured:
        assert not policy.decide_entry(entry)
    assert not [query for query in captured if "leaderboard_standing" in query["sql"]]


def test_maintainers_track_approves_nothing_by_policy(open_track: Track) -> None:
    Track.objects.update(approval=Track.Approval.MAINTAINER)
    entry = propose_entry(open_track, 1)
    assert decide(entry) == ("proposed", "")
    assert entry.needs_person


@pytest.mark.parametrize(
    ("approval", "kind", "approver"),
    [
        ("anyone", "architecture", "the policy's"),
        ("anyone", "open", "a maintainer's"),
        ("maintainer", "architecture", "a maintainer's"),
    ],
)
def test_waiting_run_names_who_approves_it(open_track: Track, approval: str, kind: str, approver: str) -> None:
    Track.objects.update(approval=approval)
    entry = propose_entry(open_track, 1, kind=kind)
    assert runs.make_run(entry, entry.track).reason == f"Waits for {approver} approval."


def test_entry_over_a_cap_is_not_approved_by_policy(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    entry.graphs.update(problem="120,000 trained parameters: 20,000 over the season's cap of 100,000.")
    assert decide(entry) == ("proposed", "caps")


def test_entry_with_graph_of_another_entry_is_not_approved(open_track: Track) -> None:
    first, copy = propose_entry(open_track, 1), propose_entry(open_track, 1, author=2)
    assert decide(copy) == ("proposed", "duplicate")
    first.refresh_from_db()
    assert (first.state, copy.duplicate_of) == ("approved", first)
    other_batch = propose_entry(open_track, 1, author=3)
    other_batch.graphs.update(config={"train": {"batch": 16}})
    assert decide(other_batch)[0] == "approved", "its recipe differs"


@pytest.mark.parametrize(
    "fields", [{"is_held": True}, {"policy_approved_at": timezone.now()}, {"kind": Entry.Kind.OPEN}]
)
def test_review_page_shows_a_copy_whatever_else_is_in_its_way(
    open_track: Track, maintainer_client: Client, fields: dict[str, Any]
) -> None:
    first, copy = propose_entry(open_track, 1, sha="a" * 40), propose_entry(open_track, 1, author=2, **fields)
    policy.decide_entries()
    for entry, is_copy in ((first, False), (copy, True)):
        page = maintainer_client.get(reverse("admin:leaderboard_entry_change", args=[entry.pk])).content.decode()
        assert (f'recipe: <a href="{first.get_absolute_url()}">' in page) == is_copy


def test_entry_with_the_canonical_graph_of_another_is_not_approved(open_track: Track) -> None:
    first, renamed = propose_entry(open_track, 1), propose_entry(open_track, 2, author=2)
    for graph in TracedGraph.objects.all():
        graph.summary |= {"canonical_hash": "c" * 64}
        graph.save()
    assert decide(renamed) == ("proposed", "duplicate")
    assert renamed.duplicate_of == first


def test_known_policy_needs_a_scored_entry_of_the_author(open_track: Track) -> None:
    Track.objects.update(approval=Track.Approval.KNOWN)
    entry = propose_entry(open_track, 1)
    assert decide(entry) == ("proposed", "unknown")
    assert entry.needs_person
    earlier = propose_entry(open_track, 2, state=Entry.State.APPROVED)
    add_scored_run(earlier)
    assert decide(entry) == ("approved", "")


def test_hours_of_author_and_site_limit_approvals_of_a_day(open_track: Track) -> None:
    entries = [propose_entry(open_track, number, author=1 + number // 3) for number in range(6)]
    policy.decide_entries()
    found = [(entry.state, entry.obstacle) for entry in Entry.objects.order_by("pk")]
    approved, author, site = ("approved", ""), ("proposed", "author_hours"), ("proposed", "site_hours")
    assert found == [approved, approved, author, approved, site, site]
    intake.withdraw_entry(Entry.objects.get(pk=entries[0].pk))
    assert decide(entries[2])[0] == "proposed", "a withdrawal gives no hours back"
    Entry.objects.filter(policy_hours__gt=0).update(policy_approved_at=F("policy_approved_at") - timedelta(hours=25))
    assert decide(entries[2]) == ("approved", "")


def test_many_waiting_entries_are_all_decided_again_whenever_the_task_runs(
    open_track: Track, monkeypatch: pytest.MonkeyPatch, time_machine: Any
) -> None:
    ApprovalLimits.objects.update(author_hours=99, site_hours=99)
    for number in range(5):
        propose_entry(open_track, number, is_held=True)
    assert policy.decide_entries() == 0
    Entry.objects.update(is_held=False)
    monkeypatch.setattr(policy, "AT_ONCE", 2)
    propose_entry(open_track, 5)
    time_machine.move_to(1_200_000_000, tick=False)
    assert [policy.decide_entries() for _ in range(3)] == [3, 2, 1], "the new one at once, the others two at a time"


def test_waiting_entries_are_decided_again_in_a_circle(open_track: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [propose_entry(open_track, number, is_held=True).pk for number in range(3)]
    policy.decide_entries()
    monkeypatch.setattr(policy, "AT_ONCE", 2)
    decided: list[int] = []
    monkeypatch.setattr(policy, "decide_entry", lambda entry: decided.append(entry.pk) or False)
    ApprovalLimits.objects.update(cursor=held[0])
    for _ in range(2):
        policy.decide_entries()
    assert decided == [held[1], held[2], held[0], held[1]]


def test_new_entry_takes_no_freed_hours_before_those_that_wait(
    open_track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "AT_ONCE", 1)
    ApprovalLimits.objects.update(site_hours=0.5)
    old = [propose_entry(open_track, number, author=number) for number in (1, 2)]
    policy.decide_entries()
    ApprovalLimits.objects.update(site_hours=1.0, cursor=old[0].pk)
    Entry.objects.filter(pk=old[1].pk).update(is_held=True)
    new = propose_entry(open_track, 3, author=3)
    assert decide(new) == ("proposed", "site_hours")
    ApprovalLimits.objects.update(cursor=new.pk)
    assert decide(old[0]) == ("approved", "")


def test_reopened_entry_is_not_approved_by_policy_again(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    decide(entry)
    intake.withdraw_entry(entry)
    intake.reopen_entry(entry, "Once more.")
    assert decide(entry) == ("proposed", "reopened")


def test_author_cannot_restart_run_approved_by_policy(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    decide(entry)
    run = entry.runs.get()
    assert not runs.has_used_attempt(run)
    Run.objects.update(state=Run.State.CANCELLED, started_at=entry.created_at, fraction=0.05)
    assert runs.has_used_attempt(Run.objects.get())


def test_pause_button_stops_all_automatic_approvals(open_track: Track, maintainer_client: Client) -> None:
    queue, pause = reverse("admin:leaderboard_entry_queue"), reverse("admin:leaderboard_entry_pause")
    entry = propose_entry(open_track, 1)
    assert "Pause all automatic approvals" in maintainer_client.get(queue).content.decode()
    maintainer_client.post(pause, {"paused": "yes"})
    assert decide(entry) == ("proposed", "paused")
    assert "Resume all automatic approvals" in maintainer_client.get(queue).content.decode()
    maintainer_client.post(pause, {"paused": "no"})
    assert decide(entry) == ("approved", "")
    sentences = Event.objects.about(ApprovalLimits.load()).values_list("actor", "sentence")
    assert list(sentences) == [("mara", "Automatic approvals paused."), ("mara", "Automatic approvals resumed.")]


def test_coordinator_cannot_pause_automatic_approvals(open_track: Track, client: Client) -> None:
    coordinator = User.objects.create_user("cora")
    permissions.grant_role(coordinator, permissions.COORDINATOR, None)
    client.force_login(User.objects.get(pk=coordinator.pk))
    assert client.post(reverse("admin:leaderboard_entry_pause"), {"paused": "yes"}).status_code == 403


def test_passed_smoke_test_leads_to_approval_without_a_person(open_track: Track, proposed_entry: Entry) -> None:
    pull = PullRequest.objects.create(number=7, author_id=99)
    Entry.objects.update(pull_request=pull, changed_files=["trainer/models/smear.py"])
    proposed_entry.refresh_from_db()
    job = smoke_tests.queue_smoke_test(proposed_entry)
    assert job is not None, "an unknown author's architecture is traced where anyone is approved"
    tasks.apply_policies()
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.obstacle) == ("smoke", "")
    finish_job(job, {"passed": True, "sentence": "It learns.", "checks": [], "graph": attach_graph(job)})
    tasks.apply_policies()
    assert Run.objects.get().state == Run.State.QUEUED


def test_smoke_test_of_unknown_author_needs_trusted_node_and_sandbox(
    open_track: Track, proposed_entry: Entry, capable_node: Node
) -> None:
    Entry.objects.update(pull_request=PullRequest.objects.create(number=7, author_id=99))
    proposed_entry.refresh_from_db()
    assert smoke_tests.queue_smoke_test(proposed_entry)
    sandboxes = capable_node.hardware["sandboxes"]
    for trusted, found in ((False, sandboxes), (True, [])):
        capable_node.trusted, capable_node.hardware["sandboxes"] = trusted, found
        capable_node.save()
        assert leases.claim_job(capable_node) is None
    capable_node.hardware["sandboxes"] = sandboxes
    capable_node.save()
    assert leases.claim_job(capable_node)


def test_setting_nobody_keeps_unknown_code_from_smoke_tests(
    open_track: Track, proposed_entry: Entry, settings: Any
) -> None:
    settings.SMOKE_UNAPPROVED = "nobody"
    assert smoke_tests.queue_smoke_test(proposed_entry) is None


def test_notice_of_waiting_entry_is_for_those_that_need_a_person(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    assert not is_waiting_for_approval(entry)
    Entry.objects.update(obstacle=Entry.Obstacle.UNKNOWN)
    entry.refresh_from_db()
    assert is_waiting_for_approval(entry)


def test_status_of_duplicate_names_the_reason(open_track: Track) -> None:
    propose_entry(open_track, 1)
    copy = propose_entry(open_track, 1, author=2)
    decide(copy)
    status = entry_status.get_approval_status(copy, copy.created_at)
    assert "Another entry has the same graph and recipe." in status.line
    assert "maintainer" not in status.todo


# --- the chain of tracks ----------------------------------------------------------------------------------------------


@pytest.fixture
def second_track(open_track: Track) -> Track:
    """A track for which `open_track` qualifies."""
    Track.objects.filter(pk=open_track.pk).update(ladder={"rungs": [1], "seeds": 1})
    fields = {"season": open_track.season, "qualifier": open_track, "budget": "40steps", "expected_seconds": 20}
    return Track.objects.create(slug="second", name="Second", config=open_track.config, **fields)


def add_standing(entry: Entry, low: float | None) -> None:
    table, _ = StandingsTable.objects.get_or_create(track=entry.track, axis="flops")
    fields = {"position": entry.pk, "run_count": 1, "multiplier": low and low * 1.1, "multiplier_low": low}
    values = {
        **fields,
        "multiplier_high": low and low * 1.2,
        "latest_run_id": entry.runs.get().pk,
        "bits_per_byte": 1.0,
    }
    Standing.objects.update_or_create(table=table, entry=entry, defaults=values)


def test_entry_for_later_track_starts_on_first_track(
    open_track: Track, second_track: Track, main_repository: Repository
) -> None:
    submitted = {"repository": str(main_repository.path), "sha": "main", "title": "x", "architecture": "gpt"}
    assert intake.submit_entry(**submitted, track=second_track).track == open_track
    direct = intake.submit_entry(**submitted, track=second_track, skips_stations=True)
    assert direct.track == second_track


@pytest.mark.parametrize(("low", "moves"), [(None, False), (0.99, False), (1.0, False), (1.01, True)])
def test_entry_moves_up_when_interval_is_above_one(
    open_track: Track, second_track: Track, low: float | None, moves: bool
) -> None:
    entry = propose_entry(open_track, 1)
    decide(entry)
    add_standing(entry, low)
    for _ in range(2):
        stations.move_entries_up(open_track)
    found = list(Entry.objects.filter(track=second_track).values_list("sha", "state", "pull_request"))
    assert found == ([(entry.sha, "smoke", entry.pull_request_id)] if moves else [])


def test_held_or_withdrawn_entry_does_not_move_up(open_track: Track, second_track: Track) -> None:
    held, withdrawn = propose_entry(open_track, 1), propose_entry(open_track, 2, author=2)
    policy.decide_entries()
    for entry in (held, withdrawn):
        add_standing(entry, 1.1)
    policy.set_held(held, True, "mara")
    intake.withdraw_entry(Entry.objects.get(pk=withdrawn.pk))
    assert stations.move_entries_up(open_track) == 0
    policy.set_held(held, False, "mara")
    assert stations.move_entries_up(open_track) == 1


def test_sync_of_pull_request_keeps_entries_of_the_chain(open_track: Track, second_track: Track) -> None:
    first = propose_entry(open_track, 1)
    decide(first)
    moved, _ = stations.enter_station(first, second_track, "site")
    Track.objects.create(slug="other", name="Other", season=open_track.season, budget="9steps", expected_seconds=1)
    pull = first.pull_request
    pull.head_sha = first.sha
    for requested, withdrawn in (("small", []), ("second", []), ("other", [first, moved])):
        found = [one for one in (first, moved) if explain_withdrawal(pull, FrontMatter(track=requested), one)]
        assert found == withdrawn


def test_maintainer_lifts_holds_and_releases_entries(
    open_track: Track, second_track: Track, maintainer_client: Client
) -> None:
    entry = propose_entry(open_track, 1)

    def act(action: str) -> None:
        address = reverse("admin:leaderboard_entry_changelist")
        maintainer_client.post(address, {"action": action, "_selected_action": [entry.pk]})
        entry.refresh_from_db()

    act("hold_entries")
    assert entry.is_held
    act("release_entries")
    assert not entry.is_held
    act("lift_to_next_track")
    lifted = Entry.objects.get(track=second_track)
    assert (lifted.state, lifted.approved_by.username) == ("approved", "mara")
    with pytest.raises(IntakeError, match="qualifies for no other track"):
        stations.lift_entry(lifted, lifted.approved_by)


def test_page_and_api_show_the_stations_of_an_entry(open_track: Track, second_track: Track, client: Client) -> None:
    entry = propose_entry(open_track, 1)
    decide(entry)
    page = client.get(entry.get_absolute_url()).content.decode()
    assert 'Second</a>\n      <span class="quiet">not reached</span>' in page
    add_standing(entry, 1.1)
    stations.move_entries_up(open_track)
    lifted = Entry.objects.get(track=second_track)
    shown = client.get(f"/api/v1/entries/{lifted.pk}").json()["stations"]
    assert [(one["track"], one["entry"], one["low"]) for one in shown] == [
        ("small", entry.pk, 1.1),
        ("second", lifted.pk, None),
    ]
    tracks = {track["slug"]: track for track in client.get("/api/v1/tracks").json()}
    assert (tracks["second"]["qualifier"], tracks["small"]["approval"]) == ("small", "anyone")


def test_chain_of_tracks_refuses_loops_and_untraced_tracks(open_track: Track, second_track: Track) -> None:
    open_track.refresh_from_db()
    open_track.qualifier = second_track
    second_track.ladder = open_track.ladder
    with pytest.raises(ValueError, match="leads back"):
        open_track.check_chain()
    second_track.is_traced = False
    with pytest.raises(ValueError, match="both tracks are traced"):
        second_track.check_chain()
    second_track.qualifier, second_track.approval = None, Track.Approval.KNOWN
    with pytest.raises(ValueError, match="only a maintainer"):
        second_track.check_chain()


def test_templates_link_the_chain_in_any_order_of_creation(track: Track) -> None:
    for slug in ("night-h100", "ci-16gb", "playground-h100"):
        create_track(slug, track.season)
    chain = Track.objects.get(slug="night-h100")
    assert [track.slug for track in chain.list_earlier()] == ["ci-16gb", "playground-h100"]
    found = dict(Track.objects.exclude(slug="small").values_list("slug", "approval"))
    assert found == {"ci-16gb": "anyone", "playground-h100": "known", "night-h100": "maintainer"}
