"""The node API of packets behind a real socket: results, errors and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client
from django.utils import timezone

from scheduler.campaigns.models import Campaign
from scheduler.models import Node
from tests.support.pool import HARDWARE, ROOT, build_bearer_header
from tests.support.volunteers import VolunteerAgent, fill_campaign, make_campaign, start_volunteer
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = pytest.mark.processes


@pytest.fixture
def http(site_url: str, settings: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    fill_campaign(make_campaign(settings, tmp_path))
    with httpx.Client(base_url=site_url, timeout=WAIT_SECONDS) as client:
        yield client


def get_packets_url(volunteer: VolunteerAgent, call: str) -> str:
    return f"{ROOT}/leases/{volunteer.claimed_job.lease.lease}/packets/{call}"


def test_packets_submitted_twice_count_once(http: httpx.Client) -> None:
    ada = start_volunteer("ada")
    headers = build_bearer_header(ada.claimed_job.lease.token)
    response = http.post(
        get_packets_url(ada, "take"), content=protocol.encode_message(protocol.TakePackets(count=3)), headers=headers
    )
    packets = protocol.TakePacketsReply.model_validate_json(response.content).packets
    assert len(packets) == 3
    message = protocol.encode_message(protocol.SubmitPackets(results=tuple(ada.result(packet) for packet in packets)))
    first, second = (http.post(get_packets_url(ada, "submit"), content=message, headers=headers) for _ in range(2))
    assert {verdict.state for verdict in protocol.SubmitPacketsReply.model_validate_json(first.content).verdicts} == {
        "taken"
    }
    assert first.json() == second.json()
    assert Campaign.objects.get().packets.filter(state="done").count() == 3


@pytest.mark.parametrize(
    ("call", "body"),
    [("take", "no JSON"), ("take", '{"version": 2}'), ("take", '{"version": 1}'), ("submit", '{"version": 1, "x": 2}')],
)
def test_invalid_message_over_socket_gets_same_error_as_in_process(http: httpx.Client, call: str, body: str) -> None:
    ada = start_volunteer("ada")
    headers = build_bearer_header(ada.claimed_job.lease.token)
    response = http.post(get_packets_url(ada, call), content=body, headers=headers)
    expected = ada.claimed_job.call(f"/packets/{call}", body)
    assert response.status_code == expected.status_code >= 400
    assert response.json() == expected.json()


def test_packet_call_with_foreign_lease_or_long_message_is_rejected(http: httpx.Client) -> None:
    ada, bob = start_volunteer("ada"), start_volunteer("bob")
    message = protocol.encode_message(protocol.TakePackets(count=3))
    response = http.post(
        get_packets_url(ada, "take"), content=message, headers=build_bearer_header(bob.claimed_job.lease.token)
    )
    assert (response.status_code, "token" in response.json()["detail"]) == (403, True)
    headers = build_bearer_header(ada.claimed_job.lease.token)
    assert http.post(get_packets_url(ada, "submit"), content=b" " * (5 * 2**20), headers=headers).status_code == 413


def test_volunteer_named_by_its_host_gets_a_number_instead(client: Client, db: None) -> None:
    message = {"version": 1, "name": HARDWARE.hostname, "hardware": HARDWARE.model_dump(mode="json")}
    for _ in range(2):
        assert client.post(f"{ROOT}/volunteer", message, content_type="application/json").status_code == 200
    assert set(Node.objects.values_list("name", flat=True)) == {"volunteer", "volunteer-2"}


def test_volunteer_is_listed_only_after_its_first_poll(client: Client, db: None) -> None:
    message = {"version": 1, "name": "look-at-me.example", "hardware": HARDWARE.model_dump(mode="json")}
    assert client.post(f"{ROOT}/volunteer", message, content_type="application/json").status_code == 200
    pages = ("/nodes/", "/nodes/live.json", "/api/v1/nodes?format=csv", "/api/v1/nodes", "/sponsors/")
    for page in pages:
        response = client.get(page)
        assert response.status_code == 200, page
        assert "look-at-me" not in response.content.decode(), page
    Node.objects.update(last_seen=timezone.now(), state=Node.State.ONLINE)
    assert "look-at-me" in client.get("/api/v1/nodes").content.decode()
