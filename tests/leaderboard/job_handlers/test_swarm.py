"""Runs of a swarm's track: who leads, which seats are ready, what is kept of what happens, and their page."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.test import Client

from leaderboard import runs
from leaderboard.job_handlers import swarm
from leaderboard.models import Entry, Run, Seat, SwarmEvent, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import matching, node_slots, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.matching import NodeSlot
from scheduler.models import Job, Node
from tests.leaderboard.conftest import hand_back, lease, train_row, upload
from trainer import protocol
from trainer.swarm.credentials import make_credential

ADDRESS = "/ip4/127.0.0.1/tcp/7000/p2p/12D3KooWQn1yPtGwGVnB6DTbQ3bRyPPGbtLwWYvKp3cQPbqhsUfE"


@pytest.fixture
def together(track: Track) -> Track:
    track.kind = Track.Kind.SWARM
    track.swarm = {"stages": 2, "workers": 2}
    track.probe_seconds = 0
    track.nightly = False
    track.full_clean()
    track.save()
    return track


@pytest.fixture
def swarm_run(main: Any, together: Track) -> Run:
    entry = intake.submit_entry(str(main.path), "main", "Everybody", "gpt", together)
    (made,) = intake.approve_entry(entry, entry.sha, None)
    return made


@pytest.fixture
def led(swarm_run: Run, able: Node) -> Run:
    """The run, whose coordinator has told where it is."""
    assert swarm_run.job is not None
    lease(swarm_run.job, able)
    tell(swarm_run, what="address", addresses=[ADDRESS])
    swarm_run.refresh_from_db()
    return swarm_run


def tell(run: Run, **row: Any) -> None:
    assert run.job is not None
    full = {"kind": "swarm", "step": 0, "time": 1_795_300_000.0, **row}
    get_job_kind(run.job).handle_metrics(run.job, [full])


def waiting(run: Run) -> list[Seat]:
    return list(Seat.objects.waiting().filter(swarm__run=run).select_related("job"))


def sit(run: Run, name: str) -> Seat:
    """Let a machine of this name take the first seat."""
    seat = waiting(run)[0]
    node, _ = Node.objects.get_or_create(name=name)
    lease(seat.job, node)
    seat.refresh_from_db()
    return seat


def test_a_run_is_led_by_the_sites_own_code_on_a_trusted_node(swarm_run: Run) -> None:
    job = swarm_run.job
    assert job is not None
    assert (job.kind, job.needs_trusted, job.entry, job.needs_sandbox) == ("swarm", True, None, False)
    order = get_job_kind(job).build_order(job, None)
    assert isinstance(order, protocol.SwarmOrder)
    assert (order.run, order.stages, order.minimum) == (swarm_run.pk, 2, 1)
    assert order.config["arch"] == "gpt"
    assert protocol.SwarmOrder.model_validate_json(protocol.encode_message(order)) == order


def test_code_that_is_not_on_main_is_not_let_onto_other_peoples_machines(main: Any, together: Track) -> None:
    main.git("checkout", "--quiet", "-b", "idea")
    main.commit("An idea", {"trainer/models/gpt.py": "class Model:\n    changed = True\n"})
    with pytest.raises(IntakeError, match="code from main only"):
        intake.submit_entry(str(main.path), "idea", "Mine", "gpt", together)
    assert not Entry.objects.exists()


def test_a_run_of_changed_code_is_not_queued_either(idea: Entry, together: Track) -> None:
    Entry.objects.filter(pk=idea.pk).update(state=Entry.State.APPROVED, changed_files=["trainer/models/gpt.py"])
    idea.refresh_from_db()
    run = runs.make_run(idea, together)
    with pytest.raises(runs.RunError, match="own code only"):
        runs.queue_run(run)


def test_seats_are_ready_once_the_coordinator_is_there_and_never_more_than_are_wanted(
    swarm_run: Run, able: Node
) -> None:
    assert swarm.fill_seats(swarm.get_swarm(swarm_run)) == 0
    assert swarm_run.job is not None
    lease(swarm_run.job, able)
    assert swarm.fill_all_seats() == 0
    tell(swarm_run, what="address", addresses=[ADDRESS])
    assert len(waiting(swarm_run)) == swarm.QUEUED_SEATS
    names = iter("abcd")
    for name, ahead in zip(names, (3, 2, 1, 0), strict=True):
        sit(swarm_run, name)
        assert len(waiting(swarm_run)) == ahead
    assert swarm.fill_all_seats() == 0


def test_a_seats_order_lets_in_nobody_else(led: Run) -> None:
    seat = waiting(led)[0]
    order = get_job_kind(seat.job).build_order(seat.job, None)
    assert isinstance(order, protocol.WorkerOrder)
    assert order.coordinator == (ADDRESS,)
    assert order.credential == make_credential(led.swarm.secret, order.label)
    assert led.swarm.secret not in protocol.encode_message(order)
    assert (seat.job.entry, seat.job.needs_trusted) == (None, False)


def test_a_lost_seat_is_given_up_and_another_queued(led: Run) -> None:
    seat = sit(led, "ada")
    taken = Seat.objects.taken().get()
    hand_back(taken.job.leases.get(), "Its heartbeat stopped.")
    seat.job.refresh_from_db()
    assert seat.job.state == Job.State.CANCELLED
    assert len(waiting(led)) == swarm.QUEUED_SEATS


def test_a_run_that_is_over_takes_its_seats_away(led: Run) -> None:
    sitting = sit(led, "ada")
    assert led.job is not None
    upload(led.job, 20)
    transitions.finish_job(led.job, "node:cellar", {"step": 20})
    led.refresh_from_db()
    assert led.state == Run.State.SCORING
    assert led.score_job is not None
    assert led.score_job.entry is None
    assert waiting(led) == []
    sitting.job.refresh_from_db()
    assert sitting.job.stop_requested == "cancel"
    assert swarm.fill_all_seats() == 0


def test_a_lost_coordinator_takes_its_seats_along_until_another_is_there(led: Run, able: Node) -> None:
    assert led.job is not None
    hand_back(led.job.leases.get())
    assert waiting(led) == []
    led.job.refresh_from_db()
    lease(led.job, able)
    tell(led, what="address", addresses=[ADDRESS])
    assert len(waiting(led)) == swarm.QUEUED_SEATS


def test_what_is_told_is_kept_and_counted_for_those_who_did_it(led: Run) -> None:
    ada, bob = sit(led, "ada"), sit(led, "bob")
    tell(led, what="join", peer="peerada1", label=ada.label, stage=0)
    tell(led, what="join", peer="peerbob1", label=bob.label, stage=1)
    held = {"0": {"peerada1": 8}, "1": {"peerbob1": 8, "stranger": 4}}
    tell(led, what="step", step=1, loss=5.0, seconds=0.5, tokens_per_second=900.0, held=held)
    tell(led, what="leave", step=1, peer="peerbob1", stage=1, why="no\x00 ledger")
    tell(led, what="nonsense")
    tell(led, what="join", peer="x" * 50, label="seat-1", stage=0)
    assert list(SwarmEvent.objects.values_list("what", flat=True)) == ["address", "join", "join", "step", "leave"]
    ada.refresh_from_db()
    bob.refresh_from_db()
    assert (ada.rows, ada.stage, bob.rows, bob.stage) == (8, 0, 8, None)
    assert SwarmEvent.objects.last().name == "bob"  # type: ignore[union-attr]
    get_job_kind(ada.job).handle_metrics(
        ada.job, [{"kind": "seat", "bytes_in": 5, "bytes_out": 7, "tokens_per_second": 90.5}]
    )
    ada.refresh_from_db()
    assert (ada.bytes_in, ada.bytes_out, ada.tokens_per_second) == (5, 7, 90.5)


def test_a_machine_that_is_banned_for_good_gets_no_other_seat_of_this_run(led: Run, client: Client) -> None:
    mallory = sit(led, "mallory")
    tell(led, what="join", peer="peermall", label=mallory.label, stage=0)
    tell(led, what="ban", peer="peermall", stage=0, why="gradients that are not finite", lasting=True)
    assert [seat.job.excluded_nodes for seat in waiting(led)] == [[mallory.node_id]] * len(waiting(led))
    seat = sit(led, "ada")
    hand_back(seat.job.leases.get())
    assert all(seat.job.excluded_nodes == [mallory.node_id] for seat in waiting(led))
    assert "mallory is banned from this run" in client.get(f"/runs/{led.pk}/swarm/").content.decode()


def test_the_curve_is_an_ordinary_one(led: Run) -> None:
    assert led.job is not None
    get_job_kind(led.job).handle_metrics(
        led.job, [train_row(3, loss=4.5), {"kind": "swarm", "what": "end", "step": 3, "time": 9.0}]
    )
    led.refresh_from_db()
    assert (led.step, led.loss) == (3, 4.5)


def test_the_page_says_who_is_where_and_escapes_names(led: Run, client: Client) -> None:
    seat = sit(led, "<b>ada</b>")
    tell(led, what="join", peer="peerada1", label=seat.label, stage=1)
    tell(led, what="step", step=1, loss=5.0, seconds=0.5, tokens_per_second=900.0, held={"1": {"peerada1": 16}})
    tell(led, what="move", step=1, peer="peerada1", stage=0, source=1)
    tell(led, what="rollback", step=0, since=1, stages=[1])
    page = " ".join(client.get(f"/runs/{led.pk}/swarm/").content.decode().split())
    assert "&lt;b&gt;ada&lt;/b&gt;" in page
    assert "<b>ada</b>" not in page
    assert "moves from stage 2 to stage 1" in page
    assert "back from step 1 to 0" in page
    assert "internet is the bottleneck" in page
    assert f"--run {led.pk}" in page
    assert led.swarm.secret not in page
    live = client.get(f"/runs/{led.pk}/swarm/live.json").json()
    assert live["last"] == SwarmEvent.objects.last().pk  # type: ignore[union-attr]
    assert f"--server {settings.SITE_URL} --run {led.pk}" in " ".join(live["parts"]["head"].split())
    assert set(live["parts"]) == {"head", "lines", "people", "happened"}
    assert f"/runs/{led.pk}/swarm/" in client.get(f"/runs/{led.pk}/").content.decode()


def test_the_record_is_handed_out_piece_by_piece(led: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaderboard.views.swarms.EVENTS_PER_RESPONSE", 3)
    for step in range(1, 6):
        tell(led, what="step", step=step, loss=1.0, held={})
    found: list[dict[str, Any]] = []
    since: int | None = 0
    while since is not None:
        answer = client.get(f"/runs/{led.pk}/swarm.json?since={since}").json()
        found += answer["events"]
        since = answer["next"]
    assert [event["step"] for event in found if event["what"] == "step"] == [1, 2, 3, 4, 5]
    assert client.get(f"/runs/{led.pk}/swarm.json?since=x").status_code == 200


def test_a_swarm_that_nobody_leads_yet_has_a_page_and_another_run_has_none(swarm_run: Run, client: Client) -> None:
    page = client.get(f"/runs/{swarm_run.pk}/swarm/")
    assert "No machines yet." in page.content.decode()
    Track.objects.update(kind=Track.Kind.COMPETITION, swarm={})
    assert client.get(f"/runs/{swarm_run.pk}/swarm/").status_code == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"swarm": {}}, "it is"),
        ({"swarm": {"stages": 0, "workers": 1}}, "whole number"),
        ({"swarm": {"stages": 2, "workers": 2, "patience": 0}}, "patience"),
        ({"budget": "60s"}, "number of steps"),
        ({"releases": 10}, "no releases"),
        ({"kind": "competition"}, "only a track of kind swarm"),
    ],
)
def test_a_track_says_what_a_swarm_cannot_have(together: Track, change: dict[str, Any], words: str) -> None:
    for name, value in change.items():
        setattr(together, name, value)
    with pytest.raises(ValidationError, match=words):
        together.full_clean()


def test_a_volunteer_takes_seats_of_the_run_it_came_for_without_an_account(led: Run, able: Node) -> None:
    job = waiting(led)[0].job
    line = matching.JobGroup(
        priority=job.priority,
        impact=0,
        expected_seconds=job.expected_seconds,
        author="",
        needs_labels=(),
        needs_trusted=job.needs_trusted,
        needs_sandbox=job.needs_sandbox,
        needs_disk_bytes=0,
        track=job.track,
        kind=job.kind,
        waiting_since=job.queued_at,
    )

    def seeker(run: int | None, packets: str = "only") -> NodeSlot:
        able.packets = packets
        able.hardware |= {"kinds": ["seat"], "swarm_run": run, "sandboxes": []}
        return node_slots.build_node_slot(able, job.queued_at)

    assert matching.find_obstacle(line, seeker(led.pk)) is None
    assert matching.find_obstacle(line, seeker(None, "never")) is None
    assert matching.find_obstacle(line, seeker(led.pk + 1)) == "that takes seats of this run too"
