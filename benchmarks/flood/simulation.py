"""The simulation: events in the order of time, each handled by the site's own code.

GitHub's deliveries come by HTTP, tasks through Redis, and ten lent GPUs call the functions behind the node API. Beat's
tasks run and idle nodes ask every ten minutes, and the early stops a minute after each look. Not simulated: git,
GitHub's answers, bytes, heartbeats between two events, the maintainers' nights.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.module_loading import import_string
from kombu.simple import SimpleQueue

from benchmarks.flood.authors import BASELINE, DAY, Idea
from benchmarks.flood.curves import BITS_PER_NAT, TrackCurves
from benchmarks.one_card.simulation import SCORE, SELF_TEST
from benchmarks.pool_simulation.clock import VirtualClock
from dailytrain.celery import app
from dailytrain.schedule import INTERVAL_TASKS
from leaderboard.models import CurvePoint, Entry, Run, Season, TracedGraph, Track
from leaderboard.monitoring import morning
from leaderboard.schedule import early_stops
from leaderboard.schedule.track_templates import CHAIN, MFU, create_track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import leases, storage, uploads
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.node_api import job_reports, polls
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.accounting.peak_flops import PEAK_FLOPS
from trainer.protocol.files import RUN_FILE, STATE_FILE
from trainer.scoring.multiplier.futility import LOOKS

TARGET = CHAIN[1]
"""The track that pull requests name."""
HOUR = 3600.0
REPOSITORY, SECRET = "trains/daily", "a secret"
FLEET = (("RTX 4060 Ti", "4060", 16),) * 4 + (("H100", "h100", 80),) * 6 + (("", "", 0),)
"""Ten lent GPUs, and the site's own machine without one. All are trusted, since losses of others stop nothing."""
ONLINE_HOURS, OFFLINE_HOURS = 14.0, 5.0
"""Means of how long a lent GPU stays and is away."""
PREPARE_SECONDS = 90.0
"""From a lease to the first step; what a smoke test takes, too."""
STEPS, STOP_SECONDS = 800, 60.0
ROUND_SECONDS = 600.0
MINUTES_A_DAY, MORNING = 15, 8 * HOUR
TASKS = (
    *("Expire leases", "Approve entries by policy", "Queue ladder runs", "Handle events", "Send the outbox"),
    *("Update progress in pull requests", "Recompute stale standings", "Confirm record candidates"),
)


@dataclass
class Machine:
    node: int
    peak: float
    message: protocol.Poll
    is_online: bool = False
    lease: int | None = None
    release_at: float = 0.0
    """Seconds of the clock at which its lease began to work."""
    done: float = 0.0
    """Part of the run's budget before this lease."""
    seconds: float = 0.0
    """Of the whole budget on this machine."""


class Flood:
    def __init__(self, clock: VirtualClock, ideas: list[Idea], days: int, seed: int, *, by_policy: bool) -> None:
        self.clock, self.days, self.rng = clock, days, random.Random(seed)
        self.ideas = {idea.number: idea for idea in (BASELINE, *ideas)}
        self.tracks = create_tracks(by_policy)
        self.curves = {slug: TrackCurves(slug, seed) for slug in self.tracks}
        self.file = storage.store_bytes(b'{"format": 1, "arch": "gpt"}')
        self.baseline = create_baseline(self.tracks[TARGET])
        for slug in self.tracks:
            self.fill_ladder(Track.objects.get(slug=slug))
        self.machines = [create_machine(number, *model) for number, model in enumerate(FLEET)]
        self.latent: dict[int, dict[float, float]] = {}
        """Losses at the looks, and at 1 the one without later tokens, of runs."""
        self.decisions: set[tuple[str, str]] = set()
        """What came to need a person, by kind and address."""
        self.github = Client()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def schedule(self, at: float, callback: Callable[[], None]) -> None:
        if at < self.days * DAY:
            self._number += 1
            heapq.heappush(self._events, (at, self._number, callback))

    def run(self, report_progress: Callable[[float], None]) -> None:
        Sweep.objects.create(pk=1, at=self.clock.now)
        for idea in self.ideas.values():
            if idea is not BASELINE:
                self.schedule(idea.at, partial(self.open_pull_request, idea))
        for machine in self.machines:
            self.schedule(self.rng.uniform(0, HOUR), partial(self.come, machine))
        for day in range(self.days):
            self.schedule(day * DAY + MORNING, self.decide_by_hand)
        for number in range(int(self.days * DAY / ROUND_SECONDS)):
            self.schedule(number * ROUND_SECONDS, self.run_tasks)
        app.loader.import_default_modules()
        with app.connection_for_read() as broker:
            self.broker = broker
            while self._events:
                self.clock.seconds, _, callback = heapq.heappop(self._events)
                callback()
                self.work()
                report_progress(self.clock.seconds)
        self.clock.seconds = self.days * DAY

    # --- the site -----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Run what the site has sent to Redis, as a worker does."""
        queue = SimpleQueue(self.broker, "short")
        try:
            while True:
                message = queue.get(block=False)
                app.tasks[message.headers["task"]](*message.payload[0])
                message.ack()
        except queue.Empty:
            queue.close()

    def run_tasks(self) -> None:
        Sweep.objects.update(at=self.clock.now - timedelta(seconds=10))
        for name in TASKS:
            import_string(INTERVAL_TASKS[name][0])()
            self.work()
        self.decisions |= {(each.kind, each.address) for each in morning.list_decisions(self.clock.now)}
        for machine in self.machines:
            self.poll(machine)

    def decide_by_hand(self) -> None:
        """Decide about what needs a person, oldest first, a minute each."""
        for entry in list_for_person()[:MINUTES_A_DAY]:
            try:
                if entry.obstacle == Entry.Obstacle.BEHIND or entry.smoke.get("passed") is False:
                    intake.reject_entry(entry, entry.get_obstacle_display() or entry.smoke_sentence, None, actor="mara")
                else:
                    intake.approve_entry(entry, entry.sha, None, actor="mara")
            except IntakeError:
                continue

    def open_pull_request(self, idea: Idea) -> None:
        fields = {"track": TARGET, "hypothesis": "It helps.", "expected_effect": "not known"}
        fields |= {"contact": f"@author{idea.author}", "architecture": f"idea{idea.number}"}
        body = "\n".join(["---", *(f"{name}: {value}" for name, value in fields.items()), "---"])
        pull = {
            "number": idea.number, "updated_at": self.clock.now.isoformat(), "state": "open", "draft": False,
            "title": f"Idea {idea.number}", "body": body, "user": {"login": f"author{idea.author}", "id": idea.author},
            "head": {"sha": f"{idea.number:040x}", "repo": {"clone_url": "https://example.org/fork.git"}},
            "html_url": f"https://example.org/pull/{idea.number}",
        }  # fmt: skip
        repository = {"full_name": REPOSITORY, "id": 1}
        payload = json.dumps({"action": "opened", "pull_request": pull, "repository": repository})
        signature = hmac.new(SECRET.encode(), payload.encode(), hashlib.sha256).hexdigest()
        headers = {"X-GitHub-Event": "pull_request", "X-Hub-Signature-256": f"sha256={signature}"}
        reply = self.github.post(
            reverse("github-webhook"), payload, content_type="application/json", headers=headers, secure=True
        )
        assert reply.status_code == 202, reply.content
        import_string(INTERVAL_TASKS["Send the outbox"][0])()  # deliveries wait for beat

    # --- machines -----------------------------------------------------------------------------------------------------

    def come(self, machine: Machine) -> None:
        machine.is_online = True
        Node.objects.filter(pk=machine.node).update(last_seen=VirtualClock.to_datetime(2 * self.days * DAY))
        if machine.peak:
            stays = self.rng.expovariate(1 / ONLINE_HOURS) * HOUR
            self.schedule(self.clock.seconds + stays, partial(self.leave, machine))
        self.poll(machine)

    def leave(self, machine: Machine) -> None:
        """Go away; the site notices when the lease expires. A checkpoint of each eighth has arrived."""
        machine.is_online = False
        Node.objects.filter(pk=machine.node).update(last_seen=self.clock.now)
        if machine.lease is not None:
            lease = self.load_lease(machine.lease)
            if lease.job.kind == "train" and (saved := int(8 * self.compute_done(machine)) / 8) > machine.done:
                self.record_checkpoint(lease, saved)
            Lease.objects.filter(pk=machine.lease).update(expires_at=self.clock.now + timedelta(seconds=60))
            machine.lease = None
        away = self.rng.expovariate(1 / OFFLINE_HOURS) * HOUR
        self.schedule(self.clock.seconds + away, partial(self.come, machine))

    def poll(self, machine: Machine) -> None:
        if not machine.is_online or machine.lease is not None:
            return
        reply = polls.answer_poll(Node.objects.get(pk=machine.node), machine.message)
        if reply.lease is None:
            return
        machine.lease = reply.lease.lease
        lease, now = self.load_lease(machine.lease), self.clock.seconds
        self.send_heartbeat(lease)
        if lease.job.kind != "train":
            seconds = lease.job.expected_seconds if lease.job.kind == "score" else PREPARE_SECONDS
            self.schedule(now + seconds, partial(self.finish, machine, lease.pk))
            return
        run = Run.objects.with_entry().get(job=lease.job)
        last = lease.job.checkpoints.resumable().last()
        machine.done, machine.release_at = (last.step / STEPS if last else 0.0), now + PREPARE_SECONDS
        machine.seconds = Budget.parse(run.budget).amount / (MFU * machine.peak)
        self.draw_losses(run)
        for look in LOOKS:
            if look > machine.done:
                at = machine.release_at + (look - machine.done) * machine.seconds
                self.schedule(at, partial(self.report_look, machine, lease.pk, look))
        end = machine.release_at + (1 - machine.done) * machine.seconds
        self.schedule(end, partial(self.finish, machine, lease.pk))

    def send_heartbeat(self, lease: Lease) -> protocol.HeartbeatReply:
        """Send one, and keep the lease until the next event of its machine."""
        reply = leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=0))
        Lease.objects.filter(pk=lease.pk).update(expires_at=VirtualClock.to_datetime(2 * self.days * DAY))
        return reply

    def compute_done(self, machine: Machine) -> float:
        return machine.done + max(self.clock.seconds - machine.release_at, 0.0) / machine.seconds

    def load_lease(self, pk: int) -> Lease:
        return Lease.objects.select_related("job", "node").get(pk=pk)

    def find_idea(self, entry: Entry) -> Idea:
        return self.ideas[entry.pull_request.number if entry.pull_request else 0]

    def draw_losses(self, run: Run) -> None:
        if run.pk not in self.latent:
            idea, curves = self.find_idea(run.entry), self.curves[run.track.slug]
            looks = curves.draw_looks(idea.multiplier, run.seed, late=idea.rate != BASELINE.rate)
            seen = {look: bits - idea.ahead * BITS_PER_NAT for look, bits in looks.items()}
            self.latent[run.pk] = {**seen, 1.0: curves.draw_end(idea.multiplier)}

    def report_look(self, machine: Machine, lease_pk: int, look: float) -> None:
        if machine.lease != lease_pk:
            return
        lease = self.load_lease(lease_pk)
        run = Run.objects.get(job=lease.job)
        bits, full = self.latent[run.pk][look], Budget.parse(run.budget).amount
        shared = {"step": int(look * STEPS), "flops": look * full * 1.0001, "loss": 2 * bits}
        rows = (
            {"kind": "train", "fraction": look * 1.0001, **shared},
            {"kind": "dev", "bits_per_byte": bits, **shared},
        )
        batch = protocol.MetricsBatch(sequence=lease.metrics_received + 1, rows=rows)
        job_reports.store_metrics(lease, batch)
        self.schedule(self.clock.seconds + STOP_SECONDS, partial(self.stop_if_behind, machine, lease_pk))

    def stop_if_behind(self, machine: Machine, lease_pk: int) -> None:
        """Run the early stops, as beat does each minute, and hand back at the next heartbeat."""
        early_stops.stop_runs_behind()
        if machine.lease != lease_pk:
            return
        lease = self.load_lease(lease_pk)
        if self.send_heartbeat(lease).stop:
            self.record_checkpoint(lease, self.compute_done(machine))
            self.end(machine, lease, outcome="released", reason="A stop was requested.")

    def record_checkpoint(self, lease: Lease, done: float) -> None:
        step, last = int(done * STEPS), lease.job.checkpoints.uploaded().last()
        charged = (self.clock.now - lease.started_at).total_seconds() + ((last.seconds or 0.0) if last else 0.0)
        state = storage.store_bytes(json.dumps({"spent": {"steps": step, "seconds": charged}}).encode())
        lease.uploads.add(state)
        file = storage.build_file_reference(state, STATE_FILE)
        uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(file,)))

    def finish(self, machine: Machine, lease_pk: int) -> None:
        if machine.lease != lease_pk:
            return
        lease, files = self.load_lease(lease_pk), ()
        result: dict[str, Any] = {}
        if lease.job.kind == "train":
            self.record_checkpoint(lease, 1.0)
            lease.uploads.add(self.file)
            result, files = {"step": STEPS}, (storage.build_file_reference(self.file, RUN_FILE),)
        elif lease.job.kind == "score":
            run = Run.objects.with_entry().get(score_job=lease.job)
            gain, found = self.curves[run.track.slug].draw_correction(self.find_idea(run.entry).ahead)
            ahead = {**asdict(found), "nats_per_token": found.nats, "is_beyond_rounding": found.is_beyond_rounding}
            ahead["stderr_bits_per_byte"] = found.stderr * BITS_PER_NAT
            bits = self.latent[run.pk][1.0] + (found.nats - gain) * BITS_PER_NAT
            flops = Budget.parse(run.budget).amount
            result = {**SCORE, "bits_per_byte": bits, "train_flops": flops, "checks": {"look_ahead": ahead}}
        elif lease.job.kind == "smoke":
            result, files = self.trace(lease)
        elif lease.job.kind == "self_test":
            result = SELF_TEST
        self.end(machine, lease, outcome="done", result=result, files=files)

    def trace(self, lease: Lease) -> tuple[dict[str, Any], tuple[protocol.FileRef, ...]]:
        graph = TracedGraph.objects.select_related("entry__pull_request", "track").get(job=lease.job)
        idea = self.find_idea(graph.entry)
        if idea.kind == "broken":
            return {"passed": False, "sentence": "Its loss does not fall.", "checks": []}, ()
        blobs = [
            storage.store_bytes(f"{name} of {idea.original} {graph.config_hash}".encode())
            for name in protocol.GRAPH_FILES
        ]
        lease.uploads.add(*blobs)
        files = tuple(
            storage.build_file_reference(blob, f"graph/{name}")
            for blob, name in zip(blobs, protocol.GRAPH_FILES, strict=True)
        )
        own = hashlib.sha256("".join(blob.sha256 for blob in blobs).encode()).hexdigest()
        summary = {**idea.summarize_graph(), "hash": own}
        return {"passed": True, "sentence": "It traces and learns.", "checks": [], "graph": summary}, files

    def end(self, machine: Machine, lease: Lease, **fields: Any) -> None:
        seconds = max((self.clock.now - lease.started_at).total_seconds(), 0.0)
        leases.finish_lease(lease, protocol.FinishLease(seconds=seconds, **fields))
        machine.lease = None
        self.poll(machine)

    def fill_ladder(self, track: Track) -> None:
        """Create the scored runs of the baseline, from which multipliers are read."""
        graph = create_graph(self.baseline, track)
        curves, full = self.curves[track.slug], Budget.parse(track.budget).amount
        for rung in track.ladder["rungs"]:
            budget = track.budget if rung == 1 else str(Budget.parse(track.budget).times(rung))
            for seed in (1, 2, 3):
                run = Run.objects.create(
                    entry=self.baseline, track=track, season=track.season, seed=seed, budget=budget, graph=graph,
                    purpose=Run.Purpose.LADDER, state=Run.State.FINISHED, trust=Run.Trust.SCORED, fraction=1.0,
                    bits_per_byte=curves.draw_end(rung), train_flops=rung * full, finished_at=self.clock.now,
                )  # fmt: skip
                for look in LOOKS if rung == 1 else ():
                    bits = curves.get_twin_loss(look, seed)
                    CurvePoint.objects.create(
                        run=run, series="dev", step=int(look * STEPS), tokens=1, flops=look * full * 1.0001,
                        seconds=1.0, loss=2 * bits, bits_per_byte=bits,
                    )  # fmt: skip


def list_for_person() -> list[Entry]:
    entries = Entry.objects.filter(state=Entry.State.PROPOSED).select_related("track__season", "pull_request")
    return [entry for entry in entries.order_by("pk") if entry.needs_person]


def create_tracks(by_policy: bool) -> dict[str, Track]:
    """Return the tracks by slug: the first two of the chain, or the second alone, on which a maintainer approves."""
    season = Season.objects.create(
        name="Flood", corpus="fineweb-edu", tokenizer="bpe:32768", dataset_hash="d" * 64, vocabulary_size=32_768
    )
    slugs = CHAIN[:2] if by_policy else CHAIN[1:2]
    for slug in slugs:
        create_track(slug, season)
    if not by_policy:
        Track.objects.update(approval=Track.Approval.MAINTAINER, stops_early=False)
    Track.objects.update(suite=[])
    return {track.slug: track for track in Track.objects.select_related("season")}


def create_baseline(track: Track) -> Entry:
    baseline = Entry.objects.create(
        track=track, kind=Entry.Kind.MAIN, state=Entry.State.APPROVED, title="main", architecture="gpt",
        repository="https://example.org/train.git", sha="0" * 40, base_sha="0" * 40, variant="main",
        bundle=storage.store_bytes(b"main"),
    )  # fmt: skip
    Season.objects.update(baseline=baseline)
    return baseline


def create_graph(entry: Entry, track: Track) -> TracedGraph:
    job = Job.objects.create(kind="smoke", state=Job.State.DONE, release=entry.bundle)
    summary = {**BASELINE.summarize_graph(), "hash": hashlib.sha256(track.slug.encode()).hexdigest()}
    return TracedGraph.objects.create(
        entry=entry, track=track, season=track.season, config_hash=track.slug, job=job, hash=summary["hash"],
        summary=summary, config=track.config,
    )  # fmt: skip


def create_machine(number: int, name: str, label: str, memory_gb: int) -> Machine:
    card = {"name": name, "memory_bytes": memory_gb * 10**9}
    labels = (f"1x{label}", f"1x{memory_gb}gb", label) if name else ()
    hardware = protocol.Hardware(
        hostname=f"machine-{number}", platform="Linux", python="3.11", cpus=16, memory_bytes=128 * 2**30,
        disk_free_bytes=2 * 10**12, gpus=(name,) if name else (), gpu_details=(card,) if name else (),
        sandboxes=("bubblewrap",), found_labels=labels,
    )  # fmt: skip
    node = Node.objects.create(
        name=f"machine-{number}", owner=User.objects.create(username=f"owner-{number}"), state=Node.State.ONLINE,
        labels=sorted(labels), hardware=hardware.model_dump(mode="json"), trusted=True, token_hash=f"{number:064}",
    )  # fmt: skip
    return Machine(node.pk, PEAK_FLOPS.get(name, 0.0), protocol.Poll(hardware=hardware, lanes=1))
