"""A packet from assignment over submission to its result, also with concurrent volunteers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing
from tests.support.pool import ClaimedJob, read_error_detail
from tests.support.volunteers import (
    VolunteerAgent,
    build_document,
    copy_source,
    fill_campaign,
    make_campaign,
    start_volunteer,
)
from trainer import protocol

pytestmark = pytest.mark.sql


def test_take_after_lost_reply_repeats_unnamed_packets(campaign: Campaign) -> None:
    ada = start_volunteer("ada")
    first = ada.take(3)
    held = tuple(packet.packet for packet in first)
    again = ada.take(2, held=held[:1])
    assert sorted(packet.packet for packet in again[:2]) == sorted(held[1:])
    assert len(again) == 4
    assert Assignment.objects.filter(state="active").count() == 5


def test_replayed_result_is_not_accepted(campaign: Campaign) -> None:
    ada, eve = start_volunteer("ada"), start_volunteer("eve")
    result = ada.result(ada.take(1)[0])
    assert [verdict.state for verdict in eve.submit(result)] == ["gone"]
    ada.submit(result)
    assert [verdict.state for verdict in eve.submit(result)] == ["gone"]
    # Nor does the text count for another packet.
    [packet] = eve.take(1)
    texts = {(output.chunk, output.style): output.text for output in result.outputs}
    copied_texts = iter(texts.values())
    [verdict] = eve.submit(eve.result(packet, lambda text, style: next(copied_texts)))
    assert not any(output.accepted for output in verdict.outputs)
    assert {reason for output in verdict.outputs for reason in output.reasons} & {"duplicate", "meaning"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "another"}, "wrong_model"),
        ({"prompt_version": 7}, "wrong_prompt_version"),
        ({"sampling": protocol.Sampling(temperature=0.1)}, "wrong_sampling"),
        ({"outputs": ()}, "missing"),
    ],
)
def test_result_with_other_settings_is_refused(campaign: Campaign, changes: dict[str, Any], reason: str) -> None:
    ada = start_volunteer("ada")
    [packet] = ada.take(1)
    result = ada.result(packet, **changes)
    [verdict] = ada.submit(result)
    assert (verdict.state, verdict.reasons) == ("refused", (reason,))
    assert ada.submit(result) == [verdict]
    assert not Rephrasing.objects.exists()
    row = Packet.objects.get(pk=packet.packet)
    assert (row.state, row.attempts) == ("waiting", 0)
    assert packet.packet not in {other.packet for other in ada.take(100)}, "not again under the same lease"


def test_take_under_another_job_kind_is_not_found(claimed_job: ClaimedJob) -> None:
    response = claimed_job.call("/packets/take", protocol.TakePackets(count=1))
    assert response.status_code == 404
    assert "not a rephrase session" in read_error_detail(response)


def test_packet_after_too_many_attempts_or_losses_is_set_aside_with_reasons(campaign: Campaign) -> None:
    Campaign.objects.update(max_attempts=2)
    for name in ("ada", "bob"):
        volunteer = start_volunteer(name)
        [copied] = volunteer.take(1)
        volunteer.submit(volunteer.result(copied, copy_source))
    Packet.objects.update(times_assigned=19)
    cy = start_volunteer("cy")
    [lost] = cy.take(1)
    cy.claimed_job.finish("released")
    for packet, reason in ((copied, "copied"), (lost, "lost")):
        row = Packet.objects.get(pk=packet.packet)
        assert row.state == "set_aside"
        outputs = {(style, tuple(reasons)) for _, style, reasons in row.missing or ()}
        assert outputs == {("easy", (reason,)), ("medium", (reason,))}


def test_output_with_prompt_too_long_does_not_count_as_rejected(campaign: Campaign) -> None:
    ada = start_volunteer("ada")
    [packet] = ada.take(1)
    result = ada.result(packet, lambda text, style: "")
    outputs = tuple(
        output.model_copy(update={"ended": "none", "trouble": "prompt_too_long"}) for output in result.outputs
    )
    [verdict] = ada.submit(result.model_copy(update={"outputs": outputs}))
    assert {output.reasons for output in verdict.outputs} == {("prompt_too_long",)}
    assert Contribution.objects.get().rejection_rate == 0


def test_four_concurrent_volunteers_write_each_packet_once(
    transactional_db: None, settings: Any, tmp_path: Path
) -> None:
    documents = [build_document(number) for number in range(12)]
    campaign = fill_campaign(make_campaign(settings, tmp_path, documents, replication_rate=0.3))
    volunteers = [start_volunteer(f"v{number}") for number in range(4)]
    errors: list[BaseException] = []

    def run_volunteer(volunteer: VolunteerAgent) -> None:
        try:
            for _ in range(50):
                packets = volunteer.take(3)
                if not packets and volunteer.last.done:
                    return
                results = [volunteer.result(packet) for packet in packets]
                if results:
                    volunteer.submit(*results)
                    volunteer.submit(*results)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run_volunteer, args=(volunteer,)) for volunteer in volunteers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert errors == []
    assert set(campaign.packets.values_list("state", flat=True)) == {"done"}
    assert Rephrasing.objects.filter(state="accepted").count() == 2 * campaign.chunk_count
    assert not campaign.packets.filter(replication__in=["planned", "assigned"]).exists()
    assigned = Assignment.objects.filter(purpose="work").values_list("packet", flat=True)
    assert len(assigned) == len(set(assigned)) == campaign.packet_count
    assert sum(Contribution.objects.values_list("packets", flat=True)) == Assignment.objects.count()
