"""The node API of packets behind a real socket: results, errors and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.campaigns.models import Campaign
from tests.support.pool import ROOT, bearer
from tests.support.volunteers import VolunteerAgent, fill_campaign, make_campaign, start_volunteer
from trainer import protocol


@pytest.fixture
def http(site_url: str, settings: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    fill_campaign(make_campaign(settings, tmp_path))
    with httpx.Client(base_url=site_url, timeout=30) as client:
        yield client


def get_packets_url(volunteer: VolunteerAgent, call: str) -> str:
    return f"{ROOT}/leases/{volunteer.work.lease.lease}/packets/{call}"


def test_packets_submitted_twice_count_once(http: httpx.Client) -> None:
    ada = start_volunteer("ada")
    headers = bearer(ada.work.lease.token)
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
def test_invalid_message_over_socket_gets_the_usual_error(http: httpx.Client, call: str, body: str) -> None:
    ada = start_volunteer("ada")
    headers = bearer(ada.work.lease.token)
    response = http.post(get_packets_url(ada, call), content=body, headers=headers)
    usual = ada.work.call(f"/packets/{call}", body)
    assert response.status_code == usual.status_code >= 400
    assert response.json() == usual.json()


def test_foreign_lease_and_long_message_are_refused(http: httpx.Client) -> None:
    ada, bob = start_volunteer("ada"), start_volunteer("bob")
    message = protocol.encode_message(protocol.TakePackets(count=3))
    response = http.post(get_packets_url(ada, "take"), content=message, headers=bearer(bob.work.lease.token))
    assert (response.status_code, "token" in response.json()["detail"]) == (403, True)
    headers = bearer(ada.work.lease.token)
    assert http.post(get_packets_url(ada, "submit"), content=b" " * (5 * 2**20), headers=headers).status_code == 413
