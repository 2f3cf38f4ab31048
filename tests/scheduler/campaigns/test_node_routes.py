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


def post_call(
    http: httpx.Client, volunteer: VolunteerAgent, call: str, content: str | bytes, token: str = ""
) -> httpx.Response:
    lease = volunteer.claimed_job.lease
    url = f"{ROOT}/leases/{lease.lease}/packets/{call}"
    return http.post(url, content=content, headers=build_bearer_header(token or lease.token))


def test_packets_over_a_socket_are_submitted_once_and_errors_are_as_in_process(http: httpx.Client) -> None:
    ada = start_volunteer("ada")
    response = post_call(http, ada, "take", protocol.encode_message(protocol.TakePackets(count=3)))
    packets = protocol.TakePacketsReply.model_validate_json(response.content).packets
    message = protocol.encode_message(protocol.SubmitPackets(results=tuple(ada.result(packet) for packet in packets)))
    first, second = (post_call(http, ada, "submit", message) for _ in range(2))
    verdicts = protocol.SubmitPacketsReply.model_validate_json(first.content).verdicts
    assert [verdict.state for verdict in verdicts] == 3 * ["taken"]
    assert first.json() == second.json()
    assert Campaign.objects.get().packets.filter(state="done").count() == 3
    for call, body in (("take", "no JSON"), ("take", '{"version": 2}'), ("submit", '{"version": 1, "x": 2}')):
        response, expected = post_call(http, ada, call, body), ada.claimed_job.call(f"/packets/{call}", body)
        assert response.status_code == expected.status_code >= 400
        assert response.json() == expected.json()


def test_packet_call_with_foreign_lease_or_long_message_is_rejected(http: httpx.Client) -> None:
    ada, bob = start_volunteer("ada"), start_volunteer("bob")
    message = protocol.encode_message(protocol.TakePackets(count=3))
    response = post_call(http, ada, "take", message, bob.claimed_job.lease.token)
    assert (response.status_code, "token" in response.json()["detail"]) == (403, True)
    assert post_call(http, ada, "submit", b" " * (5 * 2**20)).status_code == 413


def test_volunteer_is_listed_only_after_its_first_poll_and_never_by_its_host(client: Client, db: None) -> None:
    def register(name: str) -> None:
        message = {"version": 1, "name": name, "hardware": HARDWARE.model_dump(mode="json")}
        assert client.post(f"{ROOT}/volunteer", message, content_type="application/json").status_code == 200

    for _ in range(2):
        register(HARDWARE.hostname)
    assert set(Node.objects.values_list("name", flat=True)) == {"volunteer", "volunteer-2"}
    register("look-at-me.example")
    for page in ("/nodes/", "/nodes/live.json", "/api/v1/nodes?format=csv", "/api/v1/nodes", "/sponsors/"):
        assert "look-at-me" not in client.get(page).content.decode(), page
    Node.objects.update(last_seen=timezone.now(), state=Node.State.ONLINE)
    assert "look-at-me" in client.get("/api/v1/nodes").content.decode()
