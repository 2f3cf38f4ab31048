"""A packet's way: made of a document, given out, written, judged, counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler import leases
from scheduler.campaigns import sessions
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing
from scheduler.models import Job, Lease
from tests.support.pool import sentence
from tests.support.volunteers import echo, garbage, make_campaign, produced, sit_down
from trainer import protocol


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    return produced(make_campaign(settings, tmp_path))


def states(campaign: Campaign) -> dict[str, int]:
    found = list(campaign.packets.values_list("state", flat=True))
    return {state: found.count(state) for state in set(found)}


def test_what_is_taken_and_handed_in_is_accepted(campaign: Campaign) -> None:
    ada = sit_down("ada")
    packets = ada.take(100)
    assert len(packets) == campaign.packet_count > 4
    assert states(campaign) == {"assigned": len(packets)}
    verdicts = ada.hand_in(*(ada.result(packet) for packet in packets))
    assert {verdict.state for verdict in verdicts} == {"taken"}
    wrong = [
        (judged.style, judged.reasons) for verdict in verdicts for judged in verdict.outputs if not judged.accepted
    ]
    assert wrong == []
    assert states(campaign) == {"done": len(packets)}
    rows = Rephrasing.objects.filter(campaign=campaign, state="accepted")
    assert rows.count() == 2 * campaign.chunk_count
    share = Contribution.objects.get(campaign=campaign)
    assert (share.packets, share.accepted, share.rejected) == (len(packets), rows.count(), 0)
    assert share.tokens > 0
    assert ada.take() == ()
    assert "Thank you" in ada.last.done


def test_nobody_is_given_what_another_holds(campaign: Campaign) -> None:
    ada, bob = sit_down("ada"), sit_down("bob")
    ours, theirs = ada.take(3), bob.take(100)
    assert {packet.packet for packet in ours}.isdisjoint(packet.packet for packet in theirs)
    assert len(ours) + len(theirs) == campaign.packet_count


def test_an_answer_that_was_lost_is_given_again(campaign: Campaign) -> None:
    ada = sit_down("ada")
    first = ada.take(3)
    held = tuple(packet.packet for packet in first)
    again = ada.take(2, held=held[:1])
    assert sorted(packet.packet for packet in again[:2]) == sorted(held[1:])
    assert len(again) == 4
    assert Assignment.objects.filter(state="active").count() == 5


def test_a_repeat_has_no_effect_and_the_same_answer(campaign: Campaign) -> None:
    ada = sit_down("ada")
    packets = ada.take(2)
    results = [ada.result(packets[0]), ada.result(packets[1], garbage)]
    first = ada.hand_in(*results)
    rows = list(Rephrasing.objects.order_by("pk").values())
    assert ada.hand_in(*results) == first
    assert list(Rephrasing.objects.order_by("pk").values()) == rows
    assert Contribution.objects.get(campaign=campaign).packets == 2


def test_the_same_packet_twice_in_a_message_counts_once(campaign: Campaign) -> None:
    ada = sit_down("ada")
    [packet] = ada.take(1)
    one, other = ada.hand_in(ada.result(packet), ada.result(packet))
    assert one == other
    assert Contribution.objects.get(campaign=campaign).packets == 1


def test_who_replays_anothers_result_gets_nothing(campaign: Campaign) -> None:
    ada, eve = sit_down("ada"), sit_down("eve")
    result = ada.result(ada.take(1)[0])
    assert [verdict.state for verdict in eve.hand_in(result)] == ["gone"]
    ada.hand_in(result)
    assert [verdict.state for verdict in eve.hand_in(result)] == ["gone"]
    # Nor is the text taken for another packet.
    [packet] = eve.take(1)
    texts = {(output.chunk, output.style): output.text for output in result.outputs}
    stolen = iter(texts.values())
    [verdict] = eve.hand_in(eve.result(packet, lambda text, style: next(stolen)))
    assert not any(judged.accepted for judged in verdict.outputs)
    assert {reason for judged in verdict.outputs for reason in judged.reasons} & {"duplicate", "meaning"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "another"}, "wrong_model"),
        ({"prompt_version": 7}, "wrong_prompt_version"),
        ({"sampling": protocol.Sampling(temperature=0.1)}, "wrong_sampling"),
        ({"outputs": ()}, "missing"),
    ],
)
def test_what_was_made_with_something_else_is_refused(campaign: Campaign, changes: dict[str, Any], reason: str) -> None:
    ada = sit_down("ada")
    [packet] = ada.take(1)
    result = ada.result(packet, **changes)
    [verdict] = ada.hand_in(result)
    assert (verdict.state, verdict.reasons) == ("refused", (reason,))
    assert ada.hand_in(result) == [verdict]
    assert not Rephrasing.objects.exists()
    row = Packet.objects.get(pk=packet.packet)
    assert (row.state, row.attempts) == ("waiting", 0)
    assert packet.packet not in {other.packet for other in ada.take(100)}, "in this sitting"


def test_what_is_rejected_is_asked_for_again_and_nothing_else(campaign: Campaign) -> None:
    ada, bob = sit_down("ada"), sit_down("bob")
    [packet] = ada.take(1)
    honest = ada.result(packet)
    mixed = ada.result(packet, lambda text, style: echo(text, style) if style == "easy" else "")
    outputs = tuple(
        bad if bad.style == "easy" else good for bad, good in zip(mixed.outputs, honest.outputs, strict=True)
    )
    [verdict] = ada.hand_in(honest.model_copy(update={"outputs": outputs}))
    assert {(judged.style, judged.accepted, judged.reasons) for judged in verdict.outputs} == {
        ("easy", False, ("copied",)),
        ("medium", True, ()),
    }
    again = next(other for other in bob.take(100) if other.packet == packet.packet)
    assert [chunk.styles for chunk in again.chunks] == [("easy",)] * len(packet.chunks)
    bob.hand_in(bob.result(again))
    assert Packet.objects.get(pk=packet.packet).state == "done"
    writers = set(
        Rephrasing.objects.filter(packet=packet.packet, state="accepted").values_list("style", "volunteer__name")
    )
    assert writers == {("easy", "bob"), ("medium", "ada")}


def test_after_some_tries_a_packet_is_set_aside_with_its_reason(campaign: Campaign) -> None:
    Campaign.objects.update(max_attempts=2)
    names = iter(("ada", "bob"))
    for name in names:
        volunteer = sit_down(name)
        [packet] = volunteer.take(1)
        volunteer.hand_in(volunteer.result(packet, echo))
    row = Packet.objects.get(pk=packet.packet)
    assert row.state == "set_aside"
    assert {(style, tuple(reasons)) for _, style, reasons in row.missing or ()} == {
        ("easy", ("copied",)),
        ("medium", ("copied",)),
    }


def test_what_a_lost_lease_held_goes_to_others(campaign: Campaign) -> None:
    ada = sit_down("ada")
    packets = ada.take(100)
    assert leases.lose_lease(Lease.objects.get(pk=ada.work.lease.lease), "It fell silent.")
    assert states(campaign) == {"waiting": len(packets)}
    assert ada.work.call("/packets/take", protocol.TakePackets(count=1)).status_code == 409
    assert [verdict.state for verdict in ada.hand_in(ada.result(packets[0]))] == ["gone"]
    bob = sit_down("bob")
    assert {packet.packet for packet in bob.take(100)} == {packet.packet for packet in packets}


def test_a_packet_that_never_comes_back_is_set_aside(campaign: Campaign) -> None:
    Packet.objects.update(times_assigned=19)
    ada = sit_down("ada")
    packets = ada.take(1)
    ada.work.finish("released")
    row = Packet.objects.get(pk=packets[0].packet)
    assert row.state == "set_aside"
    assert {tuple(reasons) for _, _, reasons in row.missing or ()} == {("lost",)}


def test_a_finished_sitting_gives_back_what_it_did_not_write(campaign: Campaign) -> None:
    ada = sit_down("ada")
    packets = ada.take(3)
    ada.hand_in(ada.result(packets[0]))
    assert ada.work.finish("done").status_code == 200
    assert states(campaign) == {"done": 1, "waiting": campaign.packet_count - 1}


def test_a_job_of_another_kind_has_no_packets(db: None, agent: Any) -> None:
    from tests.support.pool import make_job

    make_job()
    answer = agent.work().call("/packets/take", protocol.TakePackets(count=1))
    assert answer.status_code == 404
    assert "not a rephrase session" in sentence(answer)


def test_a_text_that_does_not_fit_the_model_gives_its_reason(campaign: Campaign) -> None:
    ada = sit_down("ada")
    [packet] = ada.take(1)
    result = ada.result(packet, lambda text, style: "")
    none = tuple(one.model_copy(update={"ended": "none", "trouble": "prompt_too_long"}) for one in result.outputs)
    [verdict] = ada.hand_in(result.model_copy(update={"outputs": none}))
    assert {judged.reasons for judged in verdict.outputs} == {("prompt_too_long",)}
    assert Contribution.objects.get().rejection_rate == 0


def test_nobody_is_asked_to_sit_down_where_nothing_waits(campaign: Campaign) -> None:
    ada = sit_down("ada")
    ada.take(100)
    Job.objects.filter(rephrase_session__campaign=campaign, state="queued").delete()
    assert sessions.queue_sessions() == 0, "ada holds all that there is"
    ada.work.finish("released")
    assert sessions.queue_sessions() > 0
