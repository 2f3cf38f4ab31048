"""Who hears of what: by Events, by records, every morning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from leaderboard import events, permissions, tasks
from leaderboard.models import CurvePoint, Entry, Night, OutboxMessage, Run, Subscription, Track
from leaderboard.notifications import delivery
from leaderboard.notifications.topics import TOPICS, is_waiting_for_approval, list_choosable_topics
from leaderboard.schedule import nightly
from leaderboard.submissions import intake
from scheduler import pool
from scheduler.models import Node
from tests.leaderboard.conftest import Repository, finish
from tests.leaderboard.rankings.test_confirmations import confirm, entry

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS", ("leaderboard.notifications.delivery.notify_about_events",))


def person(name: str, *groups: str) -> User:
    made = User.objects.create(username=name, is_staff=bool(groups))
    made.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return made


def subscribe(user: User, *topics: str, **fields: Any) -> Subscription:
    values = {"kind": "webhook", "address": f"https://{user}.example.org/", "secret": "s", **fields}
    return Subscription.objects.create(user=user, topics=list(topics), **{"confirmed_at": timezone.now(), **values})


def told(topic: str) -> list[tuple[str, str]]:
    """Whom it was said to, and about what."""
    names = dict(Subscription.objects.values_list("pk", "user__username"))
    notices = OutboxMessage.objects.filter(kind="notice", payload__topic=topic).order_by("pk")
    return [(names[notice.payload["subscription"]], notice.payload["about"]) for notice in notices]


# --- a node down -----------------------------------------------------------------------------------------------------


def silence(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(state=Node.State.ONLINE, last_seen=timezone.now() - timedelta(hours=1))
    pool.mark_silent_nodes_offline(timezone.now())


def test_a_silent_node_is_told_to_its_owner_and_to_maintainers_once_each_time(node: Node) -> None:
    owner = person("uma")
    for user in (owner, person("mara", permissions.MAINTAINER), person("carl", permissions.COORDINATOR), person("zoe")):
        subscribe(user, "node")
    Node.objects.filter(pk=node.pk).update(owner=owner)
    silence(node)
    events.announce_events()
    events.announce_events()
    assert [name for name, _ in told("node")] == ["uma", "mara"]
    message = TOPICS["node"].compose(told("node")[0][1])
    assert message
    assert message.title == "cellar is offline"
    silence(node)
    events.announce_events()
    assert [name for name, _ in told("node")] == ["uma", "mara", "uma", "mara"]


def test_a_node_that_is_back_before_the_notice_is_no_news(node: Node) -> None:
    subscribe(person("mara", permissions.MAINTAINER), "node")
    silence(node)
    events.announce_events()
    Node.objects.filter(pk=node.pk).update(state=Node.State.ONLINE)
    assert TOPICS["node"].compose(told("node")[0][1]) is None


def test_what_else_happens_to_a_node_is_no_news(node: Node) -> None:
    subscribe(person("mara", permissions.MAINTAINER), "node")
    silence(node)
    events.announce_events()
    pool.pause_node(node, "mara")
    events.announce_events()
    assert len(told("node")) == 1


# --- waiting for approval --------------------------------------------------------------------------------------------


def test_an_entry_that_waits_is_told_to_those_who_may_approve_it(track: Track, main: Repository) -> None:
    for user in (person("mara", permissions.MAINTAINER), person("carl", permissions.COORDINATOR), person("zoe")):
        subscribe(user, "approval")
    entry = intake.submit_entry(str(main.path), "main", "Smeared keys", "smear", track, hypothesis="Bigrams sooner.")
    events.announce_events()
    assert told("approval") == [("mara", f"{entry.pk}.0")], "a coordinator does not decide about nightly tracks"
    message = TOPICS["approval"].compose(f"{entry.pk}.0")
    assert message
    assert message.title == "Waits for approval: Smeared keys"
    assert "Its hypothesis: Bigrams sooner." in message.lines
    assert message.url.endswith(entry.get_absolute_url())
    intake.approve_entry(entry, entry.sha, None)
    events.announce_events()
    assert len(told("approval")) == 1
    assert TOPICS["approval"].compose(f"{entry.pk}.0") is None


def test_nobody_is_called_before_the_smoke_run_has_passed(idea: Entry) -> None:
    subscribe(person("mara", permissions.MAINTAINER), "approval")
    Entry.objects.filter(pk=idea.pk).update(state=Entry.State.SMOKE)
    events.announce_events()
    assert told("approval") == []
    Entry.objects.filter(pk=idea.pk).update(state=Entry.State.PROPOSED, smoke={"passed": False})
    idea.refresh_from_db()
    assert not is_waiting_for_approval(idea)
    Entry.objects.filter(pk=idea.pk).update(smoke={"passed": True}, smoke_sentence="It learns.")
    idea.refresh_from_db()
    assert is_waiting_for_approval(idea)


# --- a record --------------------------------------------------------------------------------------------------------


def test_a_record_is_told_with_its_multiplier(full_track: Track) -> None:
    subscribe(person("vera"), "record", "morning")
    subscribe(person("late"), "morning")
    better = entry(full_track, 1.3)
    confirm(better, 1.3)
    events.announce_events()
    assert told("record") == [("vera", str(better.pk))]
    message = TOPICS["record"].compose(str(better.pk))
    assert message
    assert message.title == f"A record on {full_track.name}: Better by mira"
    assert "Multiplier 1.3" in message.lines[0]
    assert message.facts["multiplier"] == pytest.approx(1.3, rel=0.05)


# --- the morning post ------------------------------------------------------------------------------------------------

MONDAY = datetime(2026, 3, 2, 20, 0, tzinfo=UTC)
TUESDAY = "2026-03-03"


def night(run: Run | None = None, **fields: Any) -> Night:
    (made,) = nightly.start_nightly_runs(MONDAY)
    Night.objects.filter(pk=made.pk).update(**fields)
    made.refresh_from_db()
    return made


def test_the_morning_post_has_last_nights_result_its_curve_and_the_numbers(track: Track, node: Node) -> None:
    made = night()
    assert made.run
    run = finish(made.run, node)
    CurvePoint.objects.filter(run=run).exists()
    Run.objects.filter(pk=run.pk).update(finished_at=MONDAY + timedelta(hours=10))
    message = TOPICS["morning"].compose(TUESDAY)
    assert message
    assert message.title == "All aboard: 3 Mar"
    assert message.lines[0].startswith("Small: main, 2 Mar finished with 2.5000 bits per byte.")
    assert message.lines[0].count("2.5000 bits per byte") == 1
    assert message.url.endswith(run.get_absolute_url())
    picture, numbers = message.files
    assert picture.contents.startswith(b"\x89PNG")
    assert numbers.contents.decode().splitlines()[0].startswith("series,step,tokens")
    assert len(numbers.contents.decode().splitlines()) == 3
    assert message.facts["nights"][0]["bits_per_byte"] == 2.5


@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        (Run.State.QUEUED, {}, "It starts as soon as one is."),
        (Run.State.TRAINING, {"fraction": 0.5, "seconds": 10.0}, "is in progress: 50% of its budget"),
        (Run.State.SCORING, {}, "is trained and being scored"),
        (Run.State.FAILED, {"reason": "The loss became NaN."}, "failed: The loss became NaN."),
    ],
)
def test_it_says_how_far_a_train_is_that_has_not_arrived(
    track: Track, state: str, fields: dict[str, Any], said: str
) -> None:
    made = night()
    Run.objects.filter(pk=made.run_id).update(state=state, **fields)
    message = TOPICS["morning"].compose(TUESDAY)
    assert message
    assert said in message.lines[0]
    assert message.files == ()


def test_a_night_without_a_train_says_why(track: Track) -> None:
    night(run=None, sentence="Run 7 of an earlier night is still training: no second one starts.")
    message = TOPICS["morning"].compose(TUESDAY)
    assert message
    assert message.lines == ("Small: Run 7 of an earlier night is still training: no second one starts.",)


def test_where_nothing_is_nightly_there_is_no_post(track: Track) -> None:
    assert TOPICS["morning"].compose(TUESDAY) is None


def test_the_schedule_asks_for_it_once_a_day(track: Track) -> None:
    subscribe(person("vera"), "morning")
    tasks.send_morning_report()
    tasks.send_morning_report()
    assert told("morning") == [("vera", timezone.now().astimezone(UTC).date().isoformat())]


# --- who listens -----------------------------------------------------------------------------------------------------


def test_only_who_has_said_yes_and_may_still_sign_in_hears_anything(db: None) -> None:
    subscribe(person("unasked"), "record", confirmed_at=None)
    subscribe(person("stopped"), "record", stopped_at=timezone.now())
    gone = person("gone")
    subscribe(gone, "record")
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert delivery.notify_subscribers("record", 1) == 0


def test_what_can_be_chosen_depends_on_who_chooses(db: None) -> None:
    assert list(list_choosable_topics(person("zoe"))) == ["morning", "record", "node"]
    assert list(list_choosable_topics(person("carl", permissions.COORDINATOR))) == [
        "morning",
        "record",
        "node",
        "approval",
    ]


def test_who_loses_his_role_hears_of_it_no_more(idea: Entry) -> None:
    carl = person("mara", permissions.MAINTAINER)
    subscription = subscribe(carl, "approval")
    events.announce_events()
    carl.groups.clear()
    (about,) = (about for _, about in told("approval"))
    assert delivery.compose_notice("approval", about, Subscription.objects.get(pk=subscription.pk)) is None
