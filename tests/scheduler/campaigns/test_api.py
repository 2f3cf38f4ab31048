"""The door of packets: what is in order is done there, all else is said where other calls are, in the same words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.campaigns import api, assignment
from scheduler.models import Campaign
from tests.support.pool import ROOT, bearer
from tests.support.volunteers import Volunteer, make_campaign, produced, sit_down
from trainer import protocol


@pytest.fixture
def http(site_url: str, settings: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    produced(make_campaign(settings, tmp_path))
    with httpx.Client(base_url=site_url, timeout=30) as client:
        yield client


def packets_of(volunteer: Volunteer, what: str) -> str:
    return f"{ROOT}/leases/{volunteer.work.lease.lease}/packets/{what}"


def test_packets_are_taken_and_handed_in_once(http: httpx.Client) -> None:
    ada = sit_down("ada")
    headers = bearer(ada.work.lease.token)
    answer = http.post(
        packets_of(ada, "take"), content=protocol.encode_message(protocol.TakePackets(count=3)), headers=headers
    )
    packets = protocol.TakePacketsReply.model_validate_json(answer.content).packets
    assert len(packets) == 3
    message = protocol.encode_message(protocol.SubmitPackets(results=tuple(ada.result(packet) for packet in packets)))
    first, second = (http.post(packets_of(ada, "submit"), content=message, headers=headers) for _ in range(2))
    assert {verdict.state for verdict in protocol.SubmitPacketsReply.model_validate_json(first.content).verdicts} == {
        "taken"
    }
    assert first.json() == second.json()
    assert Campaign.objects.get().packets.filter(state="done").count() == 3


@pytest.mark.parametrize(
    ("what", "sent"),
    [("take", "no JSON"), ("take", '{"version": 2}'), ("take", '{"version": 1}'), ("submit", '{"version": 1, "x": 2}')],
)
def test_what_cannot_be_read_is_refused_in_the_same_words(http: httpx.Client, what: str, sent: str) -> None:
    ada = sit_down("ada")
    headers = bearer(ada.work.lease.token)
    answer = http.post(packets_of(ada, what), content=sent, headers=headers)
    usual = ada.work.call(f"/packets/{what}", sent)
    assert answer.status_code == usual.status_code >= 400
    assert answer.json() == usual.json()


def test_another_ones_lease_and_a_message_too_long_are_refused(http: httpx.Client) -> None:
    ada, bob = sit_down("ada"), sit_down("bob")
    asked = protocol.encode_message(protocol.TakePackets(count=3))
    answer = http.post(packets_of(ada, "take"), content=asked, headers=bearer(bob.work.lease.token))
    assert (answer.status_code, "token" in answer.json()["detail"]) == (403, True)
    headers = bearer(ada.work.lease.token)
    assert http.post(packets_of(ada, "submit"), content=b" " * (5 * 2**20), headers=headers).status_code == 413


def test_however_many_ask_a_few_are_answered_at_a_time(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = sit_down("ada")
    meeting, threads = threading.Event(), set()

    def take(*_: Any) -> protocol.TakePacketsReply:
        threads.add(threading.get_ident())
        if len(threads) == api.AT_ONCE:
            meeting.set()
        assert meeting.wait(20), "so many are answered at the same time"
        return protocol.TakePacketsReply()

    monkeypatch.setattr(assignment, "take", take)

    def ask() -> int:
        message = protocol.encode_message(protocol.TakePackets(count=1))
        headers = bearer(ada.work.lease.token)
        return http.post(packets_of(ada, "take"), content=message, headers=headers).status_code

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda _: ask(), range(12))) == [200] * 12
    assert len(threads) == api.AT_ONCE
