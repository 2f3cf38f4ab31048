"""Reputation: replicas, known answers, quotas, bans and withdrawal; registration of volunteers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.campaigns import reputation, sessions, submission, transitions, withdrawal
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing, Volunteer
from scheduler.models import Event, Node
from tests.support.pool import HARDWARE, Agent, create_job, read_error_detail
from tests.support.volunteers import (
    VolunteerAgent,
    build_document,
    copy_source,
    fill_campaign,
    make_campaign,
    paraphrase_text,
    start_volunteer,
    write_garbage,
)
from trainer import protocol

pytestmark = pytest.mark.sql
DOCUMENTS = [build_document(number) for number in range(10)]


def get_volunteer(agent: VolunteerAgent) -> Volunteer:
    return reputation.get_volunteer(Node.objects.get(pk=agent.node.pk))


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    return fill_campaign(make_campaign(settings, tmp_path, DOCUMENTS))


@pytest.fixture
def replicated_campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A campaign half of whose packets are written twice."""
    return fill_campaign(make_campaign(settings, tmp_path, DOCUMENTS, replication_rate=0.5))


def write_half(text: str, style: str, salt: str) -> str:
    """Return a text that the checks accept for all styles but "easy"."""
    return copy_source(text, style) if style == "easy" else paraphrase_text(text, style, salt)


def rephrase_all(*names: str) -> None:
    for name in names:
        volunteer = start_volunteer(name)
        while volunteer.rephrase():
            pass


def ask_known_answers() -> None:
    """Withdraw the texts that only one volunteer wrote; each further packet is one with a known answer."""
    rephrase_all("ada", "bob")
    Campaign.objects.update(known_answer_rate=1.0)
    Packet.objects.filter(replication="none").update(state="waiting", missing=None)
    Rephrasing.objects.filter(packet__replication="none").update(state="withdrawn")


# --- replicas and known answers --------------------------------------------------------------------------------------


def test_replica_by_same_owner_is_not_assigned(replicated_campaign: Campaign, settings: Any) -> None:
    settings.REPHRASE_NEW_PER_HOUR = 1000
    owner = User.objects.create_user("ada")
    first, second = start_volunteer("one", owner=owner), start_volunteer("other", owner=owner)
    assert get_volunteer(first) == get_volunteer(second)
    assert (get_volunteer(first).name, Volunteer.objects.count()) == ("ada", 1)
    while first.rephrase():
        pass
    assert second.take() == ()
    assert not replicated_campaign.packets.filter(replication="agreed").exists()


def test_differing_replica_counts_no_mismatch(replicated_campaign: Campaign) -> None:
    rephrase_all("ada")
    start_volunteer("eve").rephrase(2, write_garbage)
    assert replicated_campaign.packets.filter(replication="disagreed").count() == 2
    assert list(Contribution.objects.values_list("agreed", "disagreed")) == [(0, 2), (0, 2)]
    assert set(Volunteer.objects.values_list("mismatches_in_a_row", flat=True)) == {0}


def test_three_missed_known_answers_ban_volunteer(replicated_campaign: Campaign) -> None:
    ask_known_answers()
    eve = start_volunteer("eve")
    for _ in range(20):
        if get_volunteer(eve).state == "banned" or not eve.rephrase(4, write_garbage):
            break
    assert get_volunteer(eve).state == "banned"
    assert Assignment.objects.filter(purpose="known", volunteer=get_volunteer(eve)).exists()
    assert eve.take() == ()
    assert "eve is banned" in eve.last.done
    assert replicated_campaign.packets.filter(replication="agreed").exists()


def test_contradicted_known_answers_only_demote_trusted_volunteer(
    replicated_campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trusted volunteer contradicts answers on which two others agreed."""
    ask_known_answers()
    responses = replicated_campaign.packets.filter(replication="agreed").count()
    cy = start_volunteer("cy")
    reputation.trust_volunteer(get_volunteer(cy), "mara", "Known to mara.")
    monkeypatch.setattr(submission, "MIN_SIMILARITY", 1.1)
    Contribution.objects.create(campaign=replicated_campaign, volunteer=get_volunteer(cy), agreed=10)
    for _ in range(20):
        if get_volunteer(cy).state != "trusted" or not cy.rephrase(2):
            break
    assert get_volunteer(cy).state == "new", "demoted, not banned"
    disagreed = replicated_campaign.packets.filter(replication="disagreed").count()
    assert disagreed >= 3
    assert replicated_campaign.packets.filter(replication="agreed").count() == responses - disagreed
    assert not Rephrasing.objects.filter(volunteer=get_volunteer(cy), state="withdrawn").exists()
    assert Contribution.objects.get(volunteer__name="ada").disagreed == disagreed, "an author of the texts"


def test_honest_volunteer_passes_known_answers(replicated_campaign: Campaign) -> None:
    rephrase_all("ada", "bob")
    Campaign.objects.update(known_answer_rate=1.0, is_exhausted=False)
    cleo = start_volunteer("cleo")
    for _ in range(8):
        cleo.rephrase(8)
    contribution = Contribution.objects.get(volunteer=get_volunteer(cleo))
    assert (contribution.agreed >= 3, contribution.disagreed) == (True, 0)
    assert Rephrasing.objects.filter(volunteer=get_volunteer(cleo), state="accepted").count() == 0


# --- bans and withdrawal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_garbage, copy_source])
def test_nonsense_bans_volunteer_soon(campaign: Campaign, write: Any) -> None:
    eve = start_volunteer("eve")
    submitted = 0
    while get_volunteer(eve).state == "new":
        assert eve.rephrase(2, write)
        submitted += 2
    assert submitted <= 12
    assert "rejected" in get_volunteer(eve).reason
    assert Event.objects.about(get_volunteer(eve)).filter(actor="site").exists()
    withdrawal.withdraw_banned()
    assert not campaign.packets.exclude(state="waiting").exists(), "rejections of a banned volunteer are no attempts"
    assert set(campaign.packets.values_list("attempts", flat=True)) == {0}


def test_withdrawal_reopens_all_packets_of_volunteer(campaign: Campaign) -> None:
    ada, eve = start_volunteer("ada"), start_volunteer("eve")
    ada.rephrase(4)
    eve.rephrase(4)
    eve.take(3)
    packets = set(Assignment.objects.filter(volunteer=get_volunteer(eve)).values_list("packet_id", flat=True))
    assert reputation.ban_volunteer(get_volunteer(eve), "mara", "Fabricated.")
    assert withdrawal.withdraw_volunteer(get_volunteer(eve)) == 7
    assert set(campaign.packets.filter(state="waiting").values_list("pk", flat=True)) >= packets
    texts = Rephrasing.objects.filter(volunteer=get_volunteer(eve))
    assert set(texts.values_list("state", flat=True)) == {"withdrawn"}
    assert Rephrasing.objects.filter(volunteer=get_volunteer(ada), state="accepted").exists()
    contribution = Contribution.objects.get(volunteer=get_volunteer(eve))
    assert (contribution.accepted, contribution.tokens, contribution.withdrawn) == (0, 0, texts.count())
    assert withdrawal.withdraw_banned() == 0
    while ada.rephrase(64):
        pass
    assert not campaign.packets.exclude(state="done").exists()
    assert reputation.unban_volunteer(get_volunteer(eve), "mara")
    assert get_volunteer(eve).state == "new"


def test_ban_does_not_blame_writers_of_missing_outputs(campaign: Campaign) -> None:
    eve, bob = start_volunteer("eve"), start_volunteer("bob")
    packets = eve.take(8)
    eve.submit(*(eve.result(packet, lambda text, style: write_half(text, style, "eve")) for packet in packets))
    shared = [packet for packet in bob.take(64) if packet.packet in {one.packet for one in packets}]
    assert {style for packet in shared for chunk in packet.chunks for style in chunk.styles} == {"easy"}
    withdrawal.ban_and_withdraw(get_volunteer(eve), "mara")
    verdicts = bob.submit(*(bob.result(packet) for packet in shared))
    assert [verdict.state for verdict in verdicts] == ["gone"] * len(packets)
    assert get_volunteer(bob).state == "new"
    assert not Contribution.objects.filter(volunteer=get_volunteer(bob), refused__gt=0).exists()
    rewritten = campaign.packets.filter(pk__in=[packet.packet for packet in shared])
    assert [len(packet.missing or ()) for packet in rewritten] == [2 * len(packet.chunks) for packet in rewritten]
    carol = start_volunteer("carol")
    while carol.rephrase(64):
        pass
    assert set(rewritten.values_list("state", flat=True)) == {"done"}


def test_campaign_finished_early_stays_finished_after_ban_of_a_volunteer_with_packets(campaign: Campaign) -> None:
    eve = start_volunteer("eve")
    eve.rephrase(2)
    [packet] = eve.take(1)
    transitions.finish_campaign(campaign, "mara", "Enough texts.")
    withdrawal.ban_and_withdraw(get_volunteer(eve), "mara")
    campaign.refresh_from_db()
    assert (campaign.state, campaign.reason) == ("done", "Enough texts.")
    assert [verdict.state for verdict in eve.submit(eve.result(packet))] == ["gone"]
    assert not Rephrasing.objects.filter(state="accepted").exists()


# --- quotas ----------------------------------------------------------------------------------------------------------


def test_new_volunteer_has_hourly_quota(campaign: Campaign, settings: Any) -> None:
    settings.REPHRASE_NEW_PER_HOUR = 5
    ada = start_volunteer("ada")
    assert len(ada.take(3)) == 3
    assert len(ada.take(30, held=tuple(packet.packet for packet in ada.last.packets))) == 2
    assert ada.take(30, held=tuple(Assignment.objects.values_list("packet_id", flat=True))) == ()
    assert ada.last.wait_seconds > 0
    reputation.trust_volunteer(get_volunteer(ada), "mara")
    assert len(ada.take(30, held=tuple(Assignment.objects.values_list("packet_id", flat=True)))) > 2


# --- registration ----------------------------------------------------------------------------------------------------


def register_volunteer(client: Any, name: str = "laptop") -> Any:
    message = protocol.RegisterVolunteer(name=name, hardware=HARDWARE.model_copy(update={"kinds": ("rephrase",)}))
    return client.post("/api/node/v1/volunteer", protocol.encode_message(message), content_type="application/json")


def test_anonymous_machine_gets_packets_only(campaign: Campaign, client: Any) -> None:
    response = register_volunteer(client)
    assert response.status_code == 200, response.content
    reply = protocol.RegisterReply.model_validate_json(response.content)
    node = Node.objects.get(pk=reply.node)
    assert (node.packets, node.owner, node.trusted) == ("only", None, False)
    hardware = HARDWARE.model_copy(update={"kinds": ("rephrase", "train")})
    create_job()
    agent = Agent(reply.token, hardware=hardware)
    assert agent.request_action().lease is None, "no session is queued, and it gets no train job"
    sessions.queue_sessions()
    assert agent.claim_job().spec.order.kind == "rephrase"


def test_volunteer_is_listed_only_after_its_first_poll_and_never_by_its_host(client: Any, db: None) -> None:
    for _ in range(2):
        register_volunteer(client, HARDWARE.hostname)
    assert set(Node.objects.values_list("name", flat=True)) == {"volunteer", "volunteer-2"}
    register_volunteer(client, "look-at-me.example")
    for page in ("/nodes/", "/nodes/live.json", "/api/v1/nodes?format=csv", "/api/v1/nodes", "/sponsors/"):
        assert "look-at-me" not in client.get(page).content.decode(), page
    Node.objects.update(last_seen=timezone.now(), state=Node.State.ONLINE)
    assert "look-at-me" in client.get("/api/v1/nodes").content.decode()


@pytest.mark.usefixtures("rate_limit_clock")
def test_registration_over_address_limit_is_refused(db: None, client: Any) -> None:
    responses = [register_volunteer(client, f"laptop-{number}").status_code for number in range(21)]
    assert responses == [200] * 20 + [429]
    response = register_volunteer(client)
    assert (response.status_code, response["Retry-After"]) == (429, "800")  # the end of the clock's hour
    assert "Try again in 14 min." in read_error_detail(response)
