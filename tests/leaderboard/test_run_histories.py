"""Property tests: runs and their jobs agree after any history of reports, requests and rulings, and none is stuck.

No history of automatic approvals exceeds the hours of a day, or approves or moves up what it must not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leaderboard import actions
from leaderboard.models import ApprovalLimits, Entry, Run, TracedGraph, Track
from leaderboard.run_states import RunError
from leaderboard.schedule import early_stops
from leaderboard.submissions import intake, policy, stations
from leaderboard.submissions.intake import IntakeError
from scheduler import lease_sweeper, leases, transitions, uploads
from scheduler.errors import LeaseEndedError
from scheduler.models import Job, Lease, Node
from tests.leaderboard.conftest import SCORE_RESULT
from tests.leaderboard.job_handlers.test_train import upload_file
from tests.leaderboard.submissions.test_policy import add_standing, propose_entry
from trainer import protocol
from trainer.scoring.multiplier import futility

pytestmark = pytest.mark.sql

QUEUED_STATES = (Job.State.QUEUED, Job.State.HELD)
JOB_STATES: dict[str, tuple[str, ...]] = {
    # state of a run: states of its training job
    Run.State.QUEUED: QUEUED_STATES,
    Run.State.TRAINING: (Job.State.LEASED,),
    Run.State.PAUSED: QUEUED_STATES,
    Run.State.SCORING: (Job.State.DONE,),
    Run.State.FINISHED: (Job.State.DONE,),
    Run.State.FAILED: transitions.FINAL_STATES,
    Run.State.CANCELLED: transitions.FINAL_STATES,
    Run.State.STOPPED: (Job.State.CANCELLED,),
}
ACTIONS = ("hold", "resume", "retry", "again", "go-on", "cancel")
REPORTS = ("metrics", "behind", "checkpoint", "done", "done without files", "released")
REPORTS += ("infrastructure", "model", "expire")
node_number = st.integers(0, 1)
history_of_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("claim", *REPORTS)), node_number),
        # A node takes a job, makes progress and then reports this.
        st.tuples(st.sampled_from([f"work, then {report}" for report in REPORTS]), node_number),
        st.tuples(st.just("work, then done"), node_number),
        st.tuples(st.sampled_from([f"author: {name}" for name in ACTIONS]), st.integers(0, 2)),
        st.tuples(st.sampled_from([f"maintainer: {name}" for name in ACTIONS]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["withdraw", "reopen", "approve", "cancel job", "sweep"]), st.just(0)),
    ),
    max_size=20,
)


class RunWorld:
    """An approved entry with its first run, its author, a maintainer, and two nodes of which one is trusted."""

    def __init__(self, run: Run, node: Node, author: User, maintainer: User) -> None:
        self.entry_id = run.entry_id
        self.author, self.maintainer = author, maintainer
        other = Node.objects.create(name="attic", state=Node.State.ONLINE, hardware=node.hardware)
        self.nodes = (node.pk, other.pk)
        self.last_leases: dict[int, int] = {}
        self.approvals = 1
        Entry.objects.filter(pk=self.entry_id).update(requested_by=author)

    def run_step(self, step: str, number: int) -> None:
        who, _, what = step.partition(": ")
        if what:
            self.act(who, what, number)
        elif step.startswith("work, then "):
            for each in ("claim", "metrics", step.removeprefix("work, then ")):
                self.run_step(each, number)
        elif step == "claim":
            self.claim(number)
        elif step == "sweep":
            lease_sweeper.sweep_leases()
        elif step in ("withdraw", "reopen", "approve"):
            self.decide(step)
        elif step == "cancel job":
            for job in Job.objects.exclude(state__in=transitions.FINAL_STATES).filter(kind__in=["train", "score"]):
                transitions.cancel_job(job, "mara", "Not wanted.")
        elif number in self.last_leases:
            lease = Lease.objects.select_related("job", "node").get(pk=self.last_leases[number])
            self.report(step, lease)

    def claim(self, number: int) -> bool:
        Node.objects.filter(pk=self.nodes[number]).update(state=Node.State.ONLINE, rest_until=None)
        granted = leases.claim_job(Node.objects.get(pk=self.nodes[number]))
        if granted:
            self.last_leases[number] = granted.lease
        return granted is not None

    def act(self, who: str, what: str, number: int) -> None:
        entry_runs = list(
            Run.objects.filter(entry=self.entry_id).select_related("entry", "track__season").order_by("pk")
        )
        run, user = entry_runs[number % len(entry_runs)], self.author if who == "author" else self.maintainer
        try:
            actions.perform_run_action(run, what, user, is_maintainer=user is self.maintainer)
        except RunError:
            return
        self.approvals += what == "again" and user is self.maintainer

    def decide(self, step: str) -> None:
        entry = Entry.objects.select_related("track__season", "bundle").get(pk=self.entry_id)
        try:
            if step == "withdraw":
                intake.withdraw_entry(entry)
            elif step == "reopen":
                intake.reopen_entry(entry, "Once more.")
            else:
                intake.approve_entry(entry, entry.sha, None, actor="mara")
                self.approvals += 1
        except IntakeError:
            return

    def report(self, step: str, lease: Lease) -> None:
        """Report as a node does under its lease, active or ended."""
        is_active = lease.state == Lease.State.ACTIVE
        try:
            if step == "expire":
                Lease.objects.filter(pk=lease.pk).update(expires_at=F("expires_at") - timedelta(days=1))
            elif step == "metrics" and is_active and lease.job.kind == "train":
                run = Run.objects.get(job=lease.job)
                Run.objects.filter(pk=run.pk).update(fraction=min(run.fraction + 0.3, 1.0), step=run.step + 6)
            elif step == "behind" and is_active and lease.job.kind == "train":
                run = Run.objects.select_related("track").get(job=lease.job)
                early_stops.store_look(run, 0.25, futility.Look(behind=0.3, error=0.02, chance=0.0))
            elif step == "checkpoint" and is_active and lease.job.kind == "train":
                self.record_checkpoint(lease, lease.job.checkpoints.count() + 1)
            elif step == "done" and is_active:
                self.finish(lease)
            elif step == "done without files":
                leases.finish_lease(lease, protocol.FinishLease(outcome="done", result={"step": 99}))
            elif step == "released":
                leases.finish_lease(lease, protocol.FinishLease(outcome="released"))
            elif step in ("infrastructure", "model"):
                failed: Any = {"outcome": "failed", "cause": step, "reason": "It broke."}
                leases.finish_lease(lease, protocol.FinishLease(**failed))
        except LeaseEndedError:
            assert not is_active

    def record_checkpoint(self, lease: Lease, step: int) -> None:
        content = f"job {lease.job_id} step {step}".encode()
        weights = upload_file(lease, f"checkpoints/step-{step:08d}/model.safetensors", content)
        uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(weights,)))

    def finish(self, lease: Lease) -> None:
        """Report a whole result, as a working node does."""
        result, files = SCORE_RESULT, ()
        if lease.job.kind == "train":
            step = lease.job.checkpoints.count() + 1
            self.record_checkpoint(lease, step)
            files = (upload_file(lease, "run.json", b'{"format": 1}'),)
            result = {"step": step}
        leases.finish_lease(lease, protocol.FinishLease(outcome="done", result=result, files=files))

    def check(self) -> None:
        for run in Run.objects.filter(entry=self.entry_id).select_related("job", "score_job"):
            assert run.state == Run.State.WAITING or run.job is not None or run.is_over
            if run.job is not None and run.state != Run.State.WAITING:
                assert run.job.state in JOB_STATES[run.state], (run.state, run.job.state)
            if run.state == Run.State.SCORING:
                assert run.score_job.state in (*QUEUED_STATES, Job.State.LEASED)
            assert (run.finished_at is not None) == run.is_over
        counted = Run.objects.filter(entry=self.entry_id, counts=True).count()
        assert counted <= self.approvals, "another whole budget was used without a maintainer"

    def let_nodes_work(self) -> None:
        """Let both nodes work until there is nothing left for them."""
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at=timezone.now() - timedelta(days=1))
        lease_sweeper.sweep_leases()
        Job.objects.update(excluded_nodes=[])
        while any([self.claim(0), self.claim(1)]):
            for lease in Lease.objects.select_related("job", "node").filter(state=Lease.State.ACTIVE):
                self.finish(lease)


@pytest.fixture
def make_world(run: Run, capable_node: Node, maintainer: User) -> Callable[[], RunWorld]:
    author = User.objects.create_user("author")
    return lambda: RunWorld(run, Node.objects.get(pk=capable_node.pk), author, maintainer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=history_of_steps)
def test_run_and_job_agree_after_any_history(
    make_world: Callable[[], RunWorld], history: list[tuple[str, int]]
) -> None:
    with transaction.atomic():
        world = make_world()
        for step, number in history:
            world.run_step(step, number)
            world.check()
        world.let_nodes_work()
        world.check()
        stuck = Run.objects.filter(entry=world.entry_id, state__in=Run.UNFINISHED).exclude(job__state=Job.State.HELD)
        stuck = stuck.exclude(score_job__state=Job.State.HELD)
        assert not [run for run in stuck if run.state != Run.State.WAITING], "a run that nothing can move"
        transaction.set_rollback(True)


# --- automatic approvals ----------------------------------------------------------------------------------------------

AUTHOR_HOURS, SITE_HOURS = 2.0, 3.0
SMOKE_RESULTS: tuple[dict[str, Any], ...] = ({"passed": True}, {"passed": False}, {"passed": None}, {})
number_of_entry = st.integers(0, 4)
history_of_approvals = st.lists(
    st.one_of(
        # The author, which of three graphs, and what its smoke test left.
        st.tuples(st.just("submit"), st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from(SMOKE_RESULTS))),
        st.tuples(st.just("submit"), st.tuples(st.integers(1, 2), st.integers(1, 3), st.just(SMOKE_RESULTS[0]))),
        st.tuples(
            st.sampled_from(["cap", "untraced", "hold", "release", "withdraw", "reopen", "lift"]), number_of_entry
        ),
        st.tuples(st.just("score"), st.tuples(number_of_entry, st.sampled_from([None, 0.9, 1.0, 1.1]))),
        st.tuples(st.sampled_from(["decide", "move up", "pause", "resume"]), st.just(0)),
        st.tuples(st.just("hours pass"), st.integers(1, 25)),
        st.tuples(st.just("flood"), st.integers(1, 2)),
        st.tuples(st.just("policy"), st.sampled_from(Track.Approval.values)),
    ),
    max_size=25,
)


class PolicyWorld:
    """Two tracks of an hour, of which the first qualifies for the second, and two authors."""

    def __init__(self, track: Track, maintainer: User) -> None:
        hour = {"expected_seconds": 3600.0, "is_traced": True, "approval": Track.Approval.ANYONE, "seeds": 1}
        Track.objects.filter(pk=track.pk).update(**hour, ladder={"rungs": [1], "seeds": 1})
        self.track, self.maintainer = Track.objects.select_related("season").get(pk=track.pk), maintainer
        known = {
            "slug": "second",
            "name": "Second",
            "season": track.season,
            "budget": "40steps",
            "config": track.config,
        }
        self.second = Track.objects.create(**known, qualifier=self.track, **hour)
        ApprovalLimits.objects.create(pk=1, author_hours=AUTHOR_HOURS, site_hours=SITE_HOURS)
        self.lifted: set[str] = set()
        self.confident: set[str] = set()
        """Commits that had an interval above 1 on the first track."""

    def run_step(self, step: str, value: Any) -> None:
        if step == "submit":
            author, number, smoke = value
            propose_entry(self.track, number, author, smoke=smoke)
        elif step == "flood":  # more good ideas of an author than a day has hours
            for _ in range(3):
                propose_entry(self.track, 10 + Entry.objects.count(), value)
            policy.decide_entries()
        elif step == "decide":
            policy.decide_entries()
        elif step == "move up":
            stations.move_entries_up(self.track)
        elif step in ("pause", "resume"):
            policy.set_paused(step == "pause", "mara")
        elif step == "hours pass":
            recent = Entry.objects.exclude(policy_approved_at=None)
            recent.update(policy_approved_at=F("policy_approved_at") - timedelta(hours=value))
        elif step == "policy":
            Track.objects.filter(pk=self.track.pk).update(approval=value)
        elif entries := list(Entry.objects.filter(track=self.track).select_related("track__season").order_by("pk")):
            number, low = value if step == "score" else (value, None)
            self.change_entry(step, entries[number % len(entries)], low)

    def change_entry(self, step: str, entry: Entry, low: float | None) -> None:
        if step == "cap":
            TracedGraph.objects.filter(entry=entry, runs=None).update(problem="Too large.")
        elif step == "untraced":
            Entry.objects.filter(pk=entry.pk, state=Entry.State.PROPOSED).update(kind=Entry.Kind.OPEN)
        elif step in ("hold", "release"):
            policy.set_held(entry, step == "hold", "mara")
        elif step == "score" and entry.runs.exists():
            entry.runs.update(counts=True)
            add_standing(entry, low)
            self.confident |= {entry.sha} if low and low > 1 else set()
        elif step == "reopen":
            intake.reopen_entry(entry, "Once more.")
        elif step == "withdraw" and entry.state != Entry.State.WITHDRAWN:
            intake.withdraw_entry(entry)
        elif step == "lift" and entry.state in (Entry.State.PROPOSED, Entry.State.APPROVED):
            self.lifted.add(entry.sha)
            stations.lift_entry(entry, self.maintainer)

    def check(self, before: set[int]) -> None:
        """Check the rows, and the conditions of what was approved by policy since `before`."""
        approved = Entry.objects.exclude(policy_approved_at=None).select_related("pull_request", "track")
        recent = [entry for entry in approved if timezone.now() - entry.policy_approved_at < timedelta(hours=24)]
        for author in (1, 2):
            own = [entry.policy_hours for entry in recent if entry.pull_request.author_id == author]
            assert sum(own) <= AUTHOR_HOURS
        assert sum(entry.policy_hours for entry in recent) <= SITE_HOURS
        for entry in approved.exclude(pk__in=before):
            assert (entry.state, entry.kind, entry.smoke["passed"]) == ("approved", "architecture", True)
            assert not entry.is_held
            assert not ApprovalLimits.objects.get().is_paused
            graph = TracedGraph.objects.get(job=entry.smoke_job)
            assert not graph.problem, "an entry over a cap was approved"
            equal = Entry.objects.filter(graphs__hash=graph.hash, track=entry.track).exclude(pk=entry.pk)
            assert not equal.filter(state="approved").exists(), "a duplicate was approved"
        moved = set(Entry.objects.filter(track=self.second).values_list("sha", flat=True))
        assert moved <= self.confident | self.lifted, "an entry moved up without confidence above 1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(history=history_of_approvals)
def test_automatic_approvals_keep_their_limits_after_any_history(
    track: Track, maintainer: User, history: list[tuple[str, Any]]
) -> None:
    with transaction.atomic():
        track.season.caps = {}
        track.season.save()
        world = PolicyWorld(track, maintainer)
        for step, value in history:
            before = set(Entry.objects.exclude(policy_approved_at=None).values_list("pk", flat=True))
            world.run_step(step, value)
            world.check(before)
        transaction.set_rollback(True)
