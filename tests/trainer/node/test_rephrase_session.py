"""Rephrase sessions of a volunteer, with outages of the site and of the back end, and the status that they show."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agent_thread import AgentThread
from tests.support.genesis import texts
from tests.support.model_server import NAME, EchoModel, SynonymModel, serve_model
from tests.support.waits import WAIT_SECONDS, wait_until
from tests.trainer.node.packet_api_server import PacketApiServer
from trainer import protocol
from trainer.distributed.ports import find_free_port
from trainer.node import rephrase_session
from trainer.node.agent import Agent, AgentStoppedError
from trainer.node.client import SiteClient
from trainer.rephrase.backends import BackendConfig
from trainer.rephrase.flags import RephraseOffer
from trainer.rephrase.serve import CompletionServer
from trainer.sandbox import get_driver

pytestmark = pytest.mark.processes

STYLES: tuple[protocol.Style, ...] = ("easy", "qa")


@pytest.fixture
def site() -> Iterator[PacketApiServer]:
    site = PacketApiServer()
    yield site
    site.close()


class Volunteer(AgentThread):
    """An agent inside the test's own process that takes rephrase jobs only."""

    def __init__(self, site: PacketApiServer, home: Path, address: str, parallel: int = 4) -> None:
        offer = RephraseOffer(BackendConfig("endpoint", url=address, model=NAME, parallel=parallel), (NAME,))
        client = SiteClient(site.address, "")
        agent = Agent(client, home, get_driver("none"), (), offer=offer, kinds=("rephrase",))
        super().__init__(agent, lambda: agent.join_as_volunteer("volunteer"))
        self.start()


AddVolunteer = Callable[..., Volunteer]


@pytest.fixture
def add_volunteer(site: PacketApiServer, tmp_path: Path) -> Iterator[AddVolunteer]:
    volunteers: list[Volunteer] = []

    def add(address: str, **more: int) -> Volunteer:
        home = tmp_path / f"volunteer-{len(volunteers)}"
        home.mkdir()
        volunteers.append(Volunteer(site, home, address, **more))
        return volunteers[-1]

    yield add
    for volunteer in volunteers:
        volunteer.stop()


@pytest.fixture
def model_server() -> Iterator[CompletionServer]:
    with serve_model(SynonymModel()) as service:
        yield service


def wait_until_ended(site: PacketApiServer, lease: int) -> protocol.FinishLease:
    wait_until(lambda: lease in site.leases and site.leases[lease].finish is not None)
    return site.leases[lease].end


@pytest.mark.parametrize("has_outage", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_session_submits_every_packet_once(
    site: PacketApiServer, add_volunteer: AddVolunteer, model_server: CompletionServer, has_outage: bool
) -> None:
    site.add_packets(texts(30), STYLES)
    lease = site.queue_session()
    if has_outage:
        site.inject_fault("unanswered", "/packets/take", 1)
        site.inject_fault("down", "/packets", 1)
        for kind in ("unanswered", "busy", "garbled"):
            site.inject_fault(kind, "/packets/submit", 1)
    add_volunteer(model_server.url)
    finish = wait_until_ended(site, lease)
    assert finish.outcome == "done", finish.reason
    result = protocol.RephraseResult.model_validate(finish.result)
    assert (result.packets, result.outputs) == (30, 60)
    assert result.accepted >= 57  # the model samples, so a few texts fail the checks
    assert result.tokens > 1000
    assert finish.seconds is not None
    assert finish.seconds > 0
    assert len(site.taken) == 30
    assert set(site.stored_counts.values()) == {1}
    # With the outage one answer never came, and one was a proxy's.
    assert max(site.submission_counts.values()) == (3 if has_outage else 1)
    hardware = site.volunteers[0].hardware
    assert hardware.kinds == ("rephrase",)
    assert hardware.rephraser == protocol.Rephraser(back_end="endpoint", models=(NAME,))


@pytest.mark.slow
def test_session_waits_for_an_unavailable_back_end(site: PacketApiServer, add_volunteer: AddVolunteer) -> None:
    site.done_message = ""  # more packets follow
    site.add_packets(texts(10), STYLES)
    lease, port = site.queue_session(), find_free_port()
    with serve_model(SynonymModel(), NAME, port) as service:
        volunteer = add_volunteer(service.url)
        wait_until(lambda: len(site.taken) == 10)
    with site.lock:
        site.add_packets(texts(20)[10:], STYLES)
        site.done_message = "All packets are done."
    wait_until(lambda: site.assigned[lease])
    time.sleep(1)
    assert (site.leases[lease].finish, len(site.taken)) == (None, 10)
    with serve_model(SynonymModel(), NAME, port):
        assert wait_until_ended(site, lease).outcome == "done"
    assert len(site.taken) == 20
    assert set(site.stored_counts.values()) == {1}
    assert volunteer.ended is None


def test_session_with_a_dead_back_end_releases_the_packets(
    site: PacketApiServer, add_volunteer: AddVolunteer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rephrase_session, "BACKEND_SECONDS", 0.5)
    site.add_packets(texts(5), STYLES)
    lease = site.queue_session()
    add_volunteer("http://127.0.0.1:9/v1")
    finish = wait_until_ended(site, lease)
    assert finish.outcome == "failed"
    assert finish.cause == "infrastructure"
    assert "cannot be reached" in finish.reason
    assert len(site.waiting) == 5


def test_session_with_a_too_long_text_reports_it(site: PacketApiServer, add_volunteer: AddVolunteer) -> None:
    short, long = texts(6), " ".join(texts(8))
    site.order = site.order.model_copy(update={"sampling": protocol.Sampling(max_tokens=300)})
    site.add_packets([*short[:3], long, *short[3:]], STYLES)
    lease = site.queue_session()
    with serve_model(SynonymModel(context=600)) as service:
        add_volunteer(service.url)
        assert wait_until_ended(site, lease).outcome == "done"
    results = list(site.taken.values())
    troubled = [output for result in results for output in result.outputs if output.ended == "none"]
    assert [(output.trouble, output.text) for output in troubled] == [("prompt_too_long", "")] * 2
    assert len({output.source_sha256 for output in troubled}) == 1
    assert sum(output.ended == "stop" for result in results for output in result.outputs) == 12
    judged = [one for verdict in site.verdicts.values() for one in verdict.outputs]
    assert sum(one.accepted for one in judged) >= 10


def test_session_retries_texts_that_fail_its_own_checks(site: PacketApiServer, add_volunteer: AddVolunteer) -> None:
    site.add_packets(texts(3), ("medium",))
    lease = site.queue_session()
    with serve_model(EchoModel()) as service:
        add_volunteer(service.url)
        finish = wait_until_ended(site, lease)
    outputs = [output for result in site.taken.values() for output in result.outputs]
    assert [(output.tries, output.trouble) for output in outputs] == [(3, "copied")] * 3
    assert finish.result["accepted"] == 0


def test_session_on_leaving_submits_finished_packets(site: PacketApiServer, add_volunteer: AddVolunteer) -> None:
    site.add_packets(texts(400), STYLES)
    lease = site.queue_session()
    with serve_model(SynonymModel(seconds=0.1)) as service:
        volunteer = add_volunteer(service.url)
        wait_until(lambda: len(site.taken) >= 3)
        volunteer.stop()
    assert site.waiting, "it takes no further packet"
    assert isinstance(volunteer.ended, AgentStoppedError) or volunteer.ended is None
    finish = site.leases[lease].end
    assert (finish.outcome, finish.reason) == ("released", "The sponsor needs the machine.")
    assert len(site.taken) + len(site.waiting) == 400
    assert set(site.stored_counts.values()) == {1}


def test_session_with_an_unsupported_campaign_fails_with_a_reason(
    site: PacketApiServer, add_volunteer: AddVolunteer, model_server: CompletionServer
) -> None:
    site.order = site.order.model_copy(update={"prompt_version": 9})
    lease = site.queue_session()
    add_volunteer(model_server.url)
    finish = wait_until_ended(site, lease)
    assert finish.outcome == "failed"
    assert "too old" in finish.reason


def test_rephrase_join_without_an_account_runs_one_session(
    site: PacketApiServer, tmp_path: Path, model_server: CompletionServer
) -> None:
    site.add_packets(texts(6), STYLES)
    lease = site.queue_session()
    command = [sys.executable, "-m", "trainer.cli", "rephrase", "join", "--server", site.address, "--once"]
    command += ["--endpoint", model_server.url, "--home", str(tmp_path / "home"), "--name", "volunteer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "Joined" in done.stderr
    assert "as volunteer 901. To be credited, sign in there and give --token." in done.stderr
    assert "6 packets submitted" in done.stderr
    assert wait_until_ended(site, lease).outcome == "done"
    assert [volunteer.name for volunteer in site.volunteers] == ["volunteer"]
