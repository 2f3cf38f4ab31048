"""Who is believed: second opinions, known answers, quotas; and whoever is not, has all of it withdrawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from scheduler import matching, node_slots
from scheduler.campaigns import join_tokens, reputation, sessions, statistics, submission, withdrawal
from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing
from scheduler.campaigns.models import Volunteer as Person
from scheduler.models import Event, JoinToken, Node
from tests.support.pool import HARDWARE, Agent, make_job, sentence
from tests.support.volunteers import Volunteer, document, echo, garbage, make_campaign, produced, sit_down
from trainer import protocol


def person(volunteer: Volunteer) -> Person:
    return reputation.get_volunteer(Node.objects.get(pk=volunteer.node.pk))


def campaign_of(settings: Any, tmp_path: Path, **fields: Any) -> Campaign:
    documents = [document(number) for number in range(10)]
    return produced(make_campaign(settings, tmp_path, documents, **fields))


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    return campaign_of(settings, tmp_path)


# --- second opinions and known answers -------------------------------------------------------------------------------


def test_a_second_volunteer_writes_it_too_and_they_agree(db: None, settings: Any, tmp_path: Path) -> None:
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    for_two = campaign.packets.filter(replication="planned").count()
    assert 0 < for_two < campaign.packet_count
    ada, bob = sit_down("ada"), sit_down("bob")
    while ada.write():
        pass
    assert campaign.packets.filter(replication="open").count() == for_two
    texts = list(Rephrasing.objects.filter(state="accepted").order_by("pk").values_list("pk", "text"))
    while bob.write():
        pass
    assert campaign.packets.filter(replication="agreed").count() == for_two
    assert list(Rephrasing.objects.filter(state="accepted").order_by("pk").values_list("pk", "text")) == texts
    assert {share.agreed for share in Contribution.objects.all()} == {for_two}
    assert person(bob).state == ("trusted" if for_two >= 10 else "new")


def test_who_writes_the_same_word_for_word_agrees(db: None, settings: Any, tmp_path: Path) -> None:
    """As models do that are asked at temperature 0."""
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    ada, bob = sit_down("ada", salt=""), sit_down("bob", salt="")
    for volunteer in (ada, bob):
        while volunteer.write():
            pass
    assert not campaign.packets.filter(replication="disagreed").exists()
    assert campaign.packets.filter(replication="agreed").exists()


def test_nobody_confirms_their_own_work(db: None, settings: Any, tmp_path: Path) -> None:
    settings.REPHRASE_NEW_PER_HOUR = 1000
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    owner = User.objects.create_user("ada")
    one, other = sit_down("one", owner=owner), sit_down("other", owner=owner)
    while one.write():
        pass
    assert other.take() == ()
    assert not campaign.packets.filter(replication="agreed").exists()


def test_a_second_opinion_that_differs_blames_nobody(db: None, settings: Any, tmp_path: Path) -> None:
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    ada, eve = sit_down("ada"), sit_down("eve")
    while ada.write():
        pass
    eve.write(2, garbage)
    assert campaign.packets.filter(replication="disagreed").count() == 2
    assert sorted((share.agreed, share.disagreed) for share in Contribution.objects.all()) == [(0, 2), (0, 2)]
    assert {person(ada).mismatches_in_a_row, person(eve).mismatches_in_a_row} == {0}


def test_three_wrong_answers_to_what_is_known_and_it_is_over(db: None, settings: Any, tmp_path: Path) -> None:
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    ada, bob = sit_down("ada"), sit_down("bob")
    for volunteer in (ada, bob):
        while volunteer.write():
            pass
    Campaign.objects.update(known_answer_rate=1.0)
    Packet.objects.filter(replication="none").update(state="waiting", missing=None)
    Rephrasing.objects.filter(packet__replication="none").update(state="withdrawn")
    eve = sit_down("eve")
    for _ in range(20):
        if person(eve).state == "banned" or not eve.write(4, garbage):
            break
    assert person(eve).state == "banned"
    assert Assignment.objects.filter(purpose="known", volunteer=person(eve)).exists()
    assert eve.take() == ()
    assert "eve is banned" in eve.last.done
    assert campaign.packets.filter(replication="agreed").exists()


def test_who_agreed_on_nonsense_bars_nobody_who_is_known(
    db: None, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agree with each other, and a third, who is known, with neither: their answer tells of nobody any more."""
    campaign = campaign_of(settings, tmp_path, replication_rate=0.5)
    ada, bob = sit_down("ada"), sit_down("bob")
    for volunteer in (ada, bob):
        while volunteer.write():
            pass
    answers = campaign.packets.filter(replication="agreed").count()
    Campaign.objects.update(known_answer_rate=1.0)
    Packet.objects.filter(replication="none").update(state="waiting", missing=None)
    Rephrasing.objects.filter(packet__replication="none").update(state="withdrawn")
    cy = sit_down("cy")
    reputation.trust_volunteer(person(cy), "mara", "Mara knows them.")
    monkeypatch.setattr(submission, "MIN_SIMILARITY", 1.1)
    Contribution.objects.create(campaign=campaign, volunteer=person(cy), agreed=10)
    for _ in range(20):
        if person(cy).state != "trusted" or not cy.write(2):
            break
    assert person(cy).state == "new", "and not barred"
    doubted = campaign.packets.filter(replication="disagreed").count()
    assert doubted >= 3
    assert campaign.packets.filter(replication="agreed").count() == answers - doubted
    assert not Rephrasing.objects.filter(volunteer=person(cy), state="withdrawn").exists()
    assert Contribution.objects.get(volunteer=person(ada)).disagreed == doubted, "whose texts they are"


def test_an_honest_volunteer_knows_the_known_answers(db: None, settings: Any, tmp_path: Path) -> None:
    campaign_of(settings, tmp_path, replication_rate=0.5)
    for name in ("ada", "bob"):
        volunteer = sit_down(name)
        while volunteer.write():
            pass
    Campaign.objects.update(known_answer_rate=1.0)
    Campaign.objects.update(is_exhausted=False)
    cleo = sit_down("cleo")
    for _ in range(8):
        cleo.write(8)
    share = Contribution.objects.get(volunteer=person(cleo))
    assert share.agreed >= 3
    assert share.disagreed == 0
    assert Rephrasing.objects.filter(volunteer=person(cleo), state="accepted").count() == 0


# --- bad ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [garbage, echo])
def test_who_sends_nonsense_is_barred_soon(campaign: Campaign, write: Any) -> None:
    eve = sit_down("eve")
    handed_in = 0
    while person(eve).state == "new":
        assert eve.write(2, write)
        handed_in += 2
    assert handed_in <= 12
    assert "rejected" in person(eve).reason
    assert Event.objects.about(person(eve)).filter(actor="site").exists()
    withdrawal.withdraw_banned()
    assert not campaign.packets.exclude(state="waiting").exists(), "its rejections count against no packet"
    assert set(campaign.packets.values_list("attempts", flat=True)) == {0}


def test_all_of_a_bad_volunteers_texts_are_withdrawn(campaign: Campaign) -> None:
    ada, eve = sit_down("ada"), sit_down("eve")
    ada.write(4)
    eve.write(4)
    eve.take(3)
    theirs = set(Assignment.objects.filter(volunteer=person(eve)).values_list("packet_id", flat=True))
    assert reputation.ban_volunteer(person(eve), "mara", "It was made up.")
    assert withdrawal.withdraw_volunteer(person(eve)) == 7
    assert set(campaign.packets.filter(state="waiting").values_list("pk", flat=True)) >= theirs
    texts = Rephrasing.objects.filter(volunteer=person(eve))
    assert set(texts.values_list("state", flat=True)) == {"withdrawn"}
    assert Rephrasing.objects.filter(volunteer=person(ada), state="accepted").exists()
    share = Contribution.objects.get(volunteer=person(eve))
    assert (share.accepted, share.tokens, share.withdrawn) == (0, 0, texts.count())
    assert withdrawal.withdraw_banned() == 0
    while ada.write(64):
        pass
    assert not campaign.packets.exclude(state="done").exists()
    assert reputation.unban_volunteer(person(eve), "mara")
    assert person(eve).state == "new"


def test_who_is_barred_hands_in_nothing(campaign: Campaign) -> None:
    eve = sit_down("eve")
    [packet] = eve.take(1)
    reputation.ban_volunteer(person(eve), "mara", "It was made up.")
    assert [verdict.state for verdict in eve.hand_in(eve.result(packet))] == ["gone"]
    assert not Rephrasing.objects.exists()


# --- how much --------------------------------------------------------------------------------------------------------


def test_who_is_new_gets_little_in_an_hour(campaign: Campaign, settings: Any) -> None:
    settings.REPHRASE_NEW_PER_HOUR = 5
    ada = sit_down("ada")
    assert len(ada.take(3)) == 3
    assert len(ada.take(30, held=tuple(packet.packet for packet in ada.last.packets))) == 2
    assert ada.take(30, held=tuple(Assignment.objects.values_list("packet_id", flat=True))) == ()
    assert ada.last.wait_seconds > 0
    reputation.trust_volunteer(person(ada), "mara")
    assert len(ada.take(30, held=tuple(Assignment.objects.values_list("packet_id", flat=True)))) > 2


def test_a_person_is_one_volunteer_with_all_nodes(campaign: Campaign) -> None:
    owner = User.objects.create_user("ada")
    one, other = sit_down("one", owner=owner), sit_down("other", owner=owner)
    assert person(one) == person(other)
    assert (person(one).name, Person.objects.count()) == ("ada", 1)


# --- coming in -------------------------------------------------------------------------------------------------------


def join(client: Any, name: str = "laptop") -> Any:
    message = protocol.RegisterVolunteer(name=name, hardware=HARDWARE.model_copy(update={"kinds": ("rephrase",)}))
    return client.post("/api/node/v1/volunteer", protocol.encode_message(message), content_type="application/json")


def test_without_an_account_a_machine_gets_packets_and_nothing_else(campaign: Campaign, client: Any) -> None:
    answer = join(client)
    assert answer.status_code == 200, answer.content
    told = protocol.RegisterReply.model_validate_json(answer.content)
    node = Node.objects.get(pk=told.node)
    assert (node.packets, node.owner, node.trusted) == ("only", None, False)
    hardware = HARDWARE.model_copy(update={"kinds": ("rephrase", "train")})
    make_job()
    agent = Agent(told.token, hardware=hardware)
    assert agent.ask().lease is None, "no sitting waits yet, and the train is not for it"
    sessions.queue_sessions()
    assert agent.work().spec.order.kind == "rephrase"


def test_too_many_from_one_address_wait(db: None, client: Any) -> None:
    answers = [join(client, f"laptop-{number}").status_code for number in range(21)]
    assert answers == [200] * 20 + [429]
    assert "in an hour" in sentence(join(client))


def test_who_has_signed_in_is_credited(campaign: Campaign) -> None:
    ada = User.objects.create_user("ada")
    token = join_tokens.create_packet_token(ada)
    kept = JoinToken.objects.get(owner=ada)
    assert token.startswith("dtn_join_")
    assert kept.for_packets


def test_a_node_rephrases_only_as_its_owner_wishes(campaign: Campaign) -> None:
    sessions.queue_sessions()
    from scheduler import job_groups
    from scheduler.models import Job

    line = job_groups.build_group_from_job(Job.objects.filter(kind="rephrase")[0])

    def obstacle(packets: str, **rephraser: Any) -> str | None:
        told = protocol.Rephraser(back_end="vllm", **rephraser)
        hardware = HARDWARE.model_copy(update={"kinds": ("rephrase", "train"), "rephraser": told})
        node = Node(pk=1, name="n", packets=packets, hardware=hardware.model_dump(mode="json"))
        return matching.find_obstacle(line, node_slots.build_node_slot(node, line.waiting_since))

    assert obstacle("between") is None
    assert obstacle("only", models=("tiny", "other")) is None
    assert obstacle("only", campaign="small") is None
    assert "lets it rephrase" in str(obstacle("never"))
    assert "model:tiny" in str(obstacle("between", models=("other",)))
    assert "campaign" in str(obstacle("between", campaign="another"))


# --- for pages -------------------------------------------------------------------------------------------------------


def test_figures_cost_the_same_however_much_there_is(
    campaign: Campaign, django_assert_num_queries: Any, django_assert_max_num_queries: Any
) -> None:
    ada, eve = sit_down("ada"), sit_down("eve")
    ada.write(3)
    eve.write(1, garbage)
    eve.take(1)
    with django_assert_max_num_queries(6):
        told = statistics.compute_progress(campaign)
    assert (told.done, told.held, told.packets, told.volunteers, told.volunteers_now) == (
        3,
        1,
        campaign.packet_count,
        2,
        1,
    )
    assert told.tokens > 0 < told.tokens_per_second
    assert told.seconds_left is not None
    with django_assert_num_queries(1):
        [best] = statistics.list_contributors(campaign)
    assert (best["texts"], best["name"]) == (told.texts, f"Volunteer {person(ada).pk}")
    with django_assert_num_queries(1):
        shown = statistics.list_samples(campaign, 2)
    assert {row["style"] for row in shown} <= {"easy", "medium"}
    with django_assert_num_queries(1):
        [worst, *_] = statistics.list_rejections(campaign)
    assert worst["sentence"].endswith(".")
    with django_assert_num_queries(3):
        [row] = statistics.list_campaigns()
    assert (row["campaign"], row["over"]) == (campaign, 3)
