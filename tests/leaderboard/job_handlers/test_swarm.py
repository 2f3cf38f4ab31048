"""Runs of a swarm track: coordinator, seats, recorded events and the swarm page."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from leaderboard.job_handlers import swarm
from leaderboard.models import Entry, Generation, Run, Seat, Swarm, SwarmEvent, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, Node
from tests.support.node_jobs import lease_job, requeue_job
from trainer import protocol
from trainer.swarm.credentials import Admission, make_credential

ADDRESS = "/ip4/127.0.0.1/tcp/7000/p2p/12D3KooWQn1yPtGwGVnB6DTbQ3bRyPPGbtLwWYvKp3cQPbqhsUfE"


@pytest.fixture
def swarm_track(track: Track) -> Track:
    track.kind = Track.Kind.SWARM
    track.swarm = {"stages": 2, "workers": 2}
    track.probe_seconds = 0
    track.nightly = False
    track.full_clean()
    track.save()
    return track


@pytest.fixture
def swarm_run(main_repository: Any, swarm_track: Track) -> Run:
    entry = intake.submit_entry(str(main_repository.path), "main", "Swarm entry", "gpt", swarm_track)
    (run,) = intake.approve_entry(entry, entry.sha, None)
    return run


@pytest.fixture
def led_run(swarm_run: Run, capable_node: Node) -> Run:
    """The run, whose coordinator has reported its address."""
    lease_job(swarm_run.job, capable_node)
    send_swarm_row(swarm_run, what="address", addresses=[ADDRESS])
    swarm_run.refresh_from_db()
    return swarm_run


def send_swarm_row(run: Run, **row: Any) -> None:
    swarm_row = {"kind": "swarm", "step": 0, "time": 1_795_300_000.0, **row}
    get_job_kind(run.job).handle_metrics(run.job, [swarm_row])


def list_waiting_seats(run: Run) -> list[Seat]:
    return list(Seat.objects.waiting().filter(swarm__run=run).select_related("job"))


def take_seat(run: Run, name: str) -> Seat:
    """Lease the first waiting seat to a node of this name."""
    seat = list_waiting_seats(run)[0]
    node, _ = Node.objects.get_or_create(name=name)
    lease_job(seat.job, node)
    seat.refresh_from_db()
    return seat


def test_swarm_entry_with_changed_code_is_refused(main_repository: Any, swarm_track: Track) -> None:
    main_repository.git("checkout", "--quiet", "-b", "idea")
    main_repository.commit("An idea", {"trainer/models/gpt.py": "class Model:\n    changed = True\n"})
    with pytest.raises(IntakeError, match="code from main only"):
        intake.submit_entry(str(main_repository.path), "idea", "Mine", "gpt", swarm_track)
    assert not Entry.objects.exists()


def test_swarm_seats_are_queued_after_coordinator_up_to_worker_count(
    swarm_run: Run, capable_node: Node, client: Client
) -> None:
    job = swarm_run.job
    assert (job.kind, job.needs_trusted, job.entry, job.needs_sandbox) == ("swarm", True, None, False)
    order = get_job_kind(job).build_order(job, None)
    assert isinstance(order, protocol.SwarmOrder)
    assert (order.run, order.stages, order.minimum, order.config["arch"]) == (swarm_run.pk, 2, 1, "gpt")
    assert protocol.SwarmOrder.model_validate_json(protocol.encode_message(order)) == order
    assert "No machines yet." in client.get(f"/runs/{swarm_run.pk}/swarm/").content.decode()
    assert swarm.fill_seats(swarm.get_swarm(swarm_run)) == 0
    lease_job(job, capable_node)
    assert swarm.fill_all_seats() == 0
    send_swarm_row(swarm_run, what="address", addresses=[ADDRESS])
    assert len(list_waiting_seats(swarm_run)) == swarm.QUEUED_SEATS
    for name, waiting_count in zip("abcd", (3, 2, 1, 0), strict=True):
        take_seat(swarm_run, name)
        assert len(list_waiting_seats(swarm_run)) == waiting_count
    assert swarm.fill_all_seats() == 0
    requeue_job(job.leases.get())
    assert list_waiting_seats(swarm_run) == [], "without its coordinator a swarm has no seats"
    Seat.objects.all().delete()
    lease_job(job, capable_node)
    send_swarm_row(swarm_run, what="address", addresses=[ADDRESS])
    assert len(list_waiting_seats(swarm_run)) == swarm.QUEUED_SEATS


def test_swarm_seat_order_has_its_own_credential(led_run: Run) -> None:
    seat = list_waiting_seats(led_run)[0]
    order = get_job_kind(seat.job).build_order(seat.job, None)
    assert isinstance(order, protocol.WorkerOrder)
    assert order.coordinator == (ADDRESS,)
    assert order.credential == make_credential(led_run.swarm.secret, order.label)
    assert led_run.swarm.secret not in protocol.encode_message(order)
    assert (seat.job.entry, seat.job.needs_trusted) == (None, False)


def test_swarm_events_are_stored_and_credited_to_seats(led_run: Run) -> None:
    ada, bob = take_seat(led_run, "ada"), take_seat(led_run, "bob")
    send_swarm_row(led_run, what="join", peer="peerada1", label=ada.label, stage=0)
    send_swarm_row(led_run, what="join", peer="peerbob1", label=bob.label, stage=1)
    held = {"0": {"peerada1": 8}, "1": {"peerbob1": 8, "unknown": 4}}
    send_swarm_row(led_run, what="step", step=1, loss=5.0, seconds=0.5, tokens_per_second=900.0, held=held)
    send_swarm_row(led_run, what="leave", step=1, peer="peerbob1", stage=1, why="no\x00 ledger")
    send_swarm_row(led_run, what="nonsense")
    send_swarm_row(led_run, what="join", peer="x" * 50, label="seat-1", stage=0)
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


def test_banned_swarm_node_gets_no_other_seat_of_run(led_run: Run, client: Client) -> None:
    mallory = take_seat(led_run, "mallory")
    send_swarm_row(led_run, what="join", peer="peermall", label=mallory.label, stage=0)
    send_swarm_row(led_run, what="ban", peer="peermall", stage=0, why="gradients that are not finite", lasting=True)
    assert [seat.job.excluded_nodes for seat in list_waiting_seats(led_run)] == [[mallory.node_id]] * len(
        list_waiting_seats(led_run)
    )
    seat = take_seat(led_run, "ada")
    requeue_job(seat.job.leases.get())
    seat.job.refresh_from_db()
    assert seat.job.state == Job.State.FAILED, "another seat replaces a lost one"
    assert all(seat.job.excluded_nodes == [mallory.node_id] for seat in list_waiting_seats(led_run))
    assert "mallory is banned from this run" in client.get(f"/runs/{led_run.pk}/swarm/").content.decode()


def test_swarm_page_shows_members_and_escapes_names(
    led_run: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = take_seat(led_run, "<b>ada</b>")
    send_swarm_row(led_run, what="join", peer="peerada1", label=seat.label, stage=1)
    held = {"1": {"peerada1": 16}}
    send_swarm_row(led_run, what="step", step=1, loss=5.0, seconds=0.5, tokens_per_second=900.0, held=held)
    send_swarm_row(led_run, what="move", step=1, peer="peerada1", stage=0, source=1)
    send_swarm_row(led_run, what="rollback", step=0, since=1, stages=[1])
    page = " ".join(client.get(f"/runs/{led_run.pk}/swarm/").content.decode().split())
    assert "&lt;b&gt;ada&lt;/b&gt;" in page
    assert "<b>ada</b>" not in page
    assert "moves from stage 2 to stage 1" in page
    assert "back from step 1 to 0" in page
    assert "internet is the bottleneck" in page
    assert f"--run {led_run.pk}" in page
    assert led_run.swarm.secret not in page
    live = client.get(f"/runs/{led_run.pk}/swarm/live.json").json()
    assert live["last"] == SwarmEvent.objects.last().pk  # type: ignore[union-attr]
    assert f"--server {settings.SITE_URL} --run {led_run.pk}" in " ".join(live["parts"]["head"].split())
    assert set(live["parts"]) == {"head", "lines", "people", "happened"}
    assert f"swarm of run {led_run.pk} · The Daily Train</title>" in page
    link = f'<a href="/runs/{led_run.pk}/swarm/">Machines that train run {led_run.pk} together</a>'
    assert link in client.get(f"/runs/{led_run.pk}/").content.decode()
    monkeypatch.setattr("leaderboard.views.swarms.EVENTS_PER_RESPONSE", 3)
    events: list[dict[str, Any]] = []
    since: int | None = 0
    while since is not None:
        answer = client.get(f"/runs/{led_run.pk}/swarm.json?since={since}").json()
        events += answer["events"]
        since = answer["next"]
    assert [event["what"] for event in events] == ["address", "join", "step", "move", "rollback"]
    Track.objects.update(kind=Track.Kind.COMPETITION, swarm={})
    assert client.get(f"/runs/{led_run.pk}/swarm/").status_code == 404


def post_prompt(client: Client, run: Run, **fields: Any) -> Any:
    return client.post(f"/runs/{run.pk}/swarm/write/", {"prompt": "The train", "tokens": "50", **fields})


def test_visitor_prompt_reaches_coordinator_with_sampling_credential(
    client: Client, led_run: Run, capable_node: Node
) -> None:
    assert "Try this model" in (page := client.get(f"/runs/{led_run.pk}/swarm/").content.decode())
    assert f'action="/runs/{led_run.pk}/swarm/write/#write"' in page
    response = post_prompt(client, led_run, temperature="0.5")
    assert response.status_code == 302
    generation = Generation.objects.select_related("job").get()
    assert response["Location"] == generation.get_absolute_url()
    job = generation.job
    assert (job.kind, job.needs_trusted, job.entry, job.needs_gpus) == ("swarm_sample", True, None, 0)
    order = get_job_kind(job).build_order(job, None)
    assert isinstance(order, protocol.SwarmSampleOrder)
    assert (order.prompt, order.tokens, order.temperature) == ("The train", 50, 0.5)
    assert order.coordinator == (ADDRESS,)
    admission = Admission(swarm.get_swarm(led_run).secret)
    assert admission.admit_sample(order.label, order.credential)
    assert not admission.admit("peer", order.label, order.credential, 0.0)
    assert protocol.SwarmSampleOrder.model_validate_json(protocol.encode_message(order)) == order
    get_job_kind(job).handle_metrics(job, [{"kind": "text", "text": " leaves <b>"}])
    page = client.get(generation.get_absolute_url()).content.decode()
    assert " leaves &lt;b&gt;" in page
    assert f'href="/runs/{led_run.pk}/swarm/#write"' in page
    assert "bits per byte" not in page
    live = client.get(f"{generation.get_absolute_url()}live.json").json()
    assert " leaves &lt;b&gt;" in live["parts"]["written"]


@pytest.mark.usefixtures("rate_limit_clock")
def test_swarm_prompts_have_limits_of_other_prompts(client: Client, led_run: Run, settings: Any) -> None:
    assert post_prompt(client, led_run, prompt="").status_code == 400
    assert [post_prompt(client, led_run).status_code for _ in range(5)] == [302] * 4 + [429]
    settings.GENERATE_PER_HOUR = 0
    response = client.get(f"/runs/{led_run.pk}/swarm/")
    assert b"<textarea" not in response.content
    address = f"/runs/{led_run.pk}/swarm/write/"
    other_site = client.post(address, {"prompt": "x"}, headers={"sec-fetch-site": "cross-site"})
    assert other_site.status_code == 403
    settings.GENERATE_PER_HOUR = 100
    Swarm.objects.update(addresses=[])
    assert b"can be tried here while machines train it" in client.get(f"/runs/{led_run.pk}/swarm/").content
