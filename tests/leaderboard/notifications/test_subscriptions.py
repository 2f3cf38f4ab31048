"""Recipients of notices: node, approval and record events, and the morning report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, User
from django.utils import timezone

from dailytrain import schedule
from leaderboard import events, permissions, tasks
from leaderboard.models import Entry, Night, OutboxMessage, Run, Subscription, Track
from leaderboard.notifications import delivery
from leaderboard.notifications.message import Message
from leaderboard.notifications.topics import TOPICS, is_waiting_for_approval, list_choosable_topics
from leaderboard.submissions import intake
from scheduler import pool
from scheduler.models import Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.leaderboard.rankings.test_confirmations import create_candidate, finish_confirmations
from tests.support import scene
from tests.support.nights import MONDAY, start_night

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _notification_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS", ("leaderboard.notifications.delivery.notify_about_events",))


def create_user(name: str, *groups: str) -> User:
    user = User.objects.create(username=name, is_staff=bool(groups))
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return user


def create_subscription(user: User, *topics: str, **fields: Any) -> Subscription:
    values = {"kind": "email", "address": f"{user}@example.org", **fields}
    return Subscription.objects.create(user=user, topics=list(topics), **{"confirmed_at": timezone.now(), **values})


def list_notices(topic: str) -> list[tuple[str, str]]:
    """Return the recipient and subject of each notice of a topic."""
    names = dict(Subscription.objects.values_list("pk", "user__username"))
    notices = OutboxMessage.objects.filter(kind="notice", payload__topic=topic).order_by("pk")
    return [(names[notice.payload["subscription"]], notice.payload["about"]) for notice in notices]


def compose(topic: str, about: str) -> Message | None:
    return TOPICS[topic].compose(TOPICS[topic].find_subject(about))


# --- offline nodes ---------------------------------------------------------------------------------------------------


def take_node_offline(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(state=Node.State.ONLINE, last_seen=timezone.now() - timedelta(hours=1))
    pool.mark_silent_nodes_offline(timezone.now())


def test_node_notice_is_sent_to_owner_and_maintainers_once(node: Node) -> None:
    owner, mara, inactive = (
        create_user("uma"),
        create_user("mara", permissions.MAINTAINER),
        create_user("ina", "maintainer"),
    )
    User.objects.filter(pk=inactive.pk).update(is_active=False)
    for user in (owner, mara, inactive, create_user("carl", permissions.COORDINATOR), create_user("zoe")):
        create_subscription(user, "node")
    for fields in ({"confirmed_at": None}, {"stopped_at": timezone.now()}):
        create_subscription(mara, "node", address=f"https://{len(fields)}.example.org/{fields.keys()}", **fields)
    Node.objects.filter(pk=node.pk).update(owner=owner)
    take_node_offline(node)
    events.announce_events()
    events.announce_events()
    assert [name for name, _ in list_notices("node")] == ["uma", "mara"]
    message = compose("node", list_notices("node")[0][1])
    assert message.title == "cellar is offline"
    Node.objects.filter(pk=node.pk).update(state=Node.State.ONLINE)
    assert compose("node", list_notices("node")[0][1]) is None, "it is online again"
    take_node_offline(node)
    events.announce_events()
    pool.pause_node(node, "mara")
    events.announce_events()
    assert [name for name, _ in list_notices("node")] == ["uma", "mara", "uma", "mara"]


# --- entries that wait for approval ----------------------------------------------------------------------------------


def test_approval_notice_is_sent_to_users_who_may_approve(track: Track, main_repository: Repository) -> None:
    mara = create_user("mara", permissions.MAINTAINER)
    for user in (mara, create_user("carl", permissions.COORDINATOR), create_user("zoe")):
        create_subscription(user, "approval")
    fields = {"hypothesis": "Bigrams sooner."}
    entry = intake.submit_entry(str(main_repository.path), "main", "Smeared keys", "smear", track, **fields)
    for state, smoke, is_waiting in (
        (Entry.State.SMOKE, {}, False),
        (Entry.State.PROPOSED, {"passed": False}, False),
        (Entry.State.PROPOSED, {"passed": True}, True),
    ):
        entry.state, entry.smoke = state, smoke
        assert is_waiting_for_approval(entry) == is_waiting
    events.announce_events()
    assert list_notices("approval") == [("mara", f"{entry.pk}.0")], "coordinators cannot approve on nightly tracks"
    message = compose("approval", f"{entry.pk}.0")
    assert message.title == "Waits for approval: Smeared keys"
    assert "Its hypothesis: Bigrams sooner." in message.lines
    assert message.url.endswith(entry.get_absolute_url())
    intake.approve_entry(entry, entry.sha, None)
    events.announce_events()
    assert len(list_notices("approval")) == 1
    assert compose("approval", f"{entry.pk}.0") is None


def test_approval_notice_is_dropped_after_role_was_removed(proposed_entry: Entry) -> None:
    user = create_user("mara", permissions.MAINTAINER)
    subscription = create_subscription(user, "approval")
    events.announce_events()
    user.groups.clear()
    (about,) = (about for _, about in list_notices("approval"))
    assert delivery.compose_notice("approval", about, Subscription.objects.get(pk=subscription.pk)) is None


# --- records ---------------------------------------------------------------------------------------------------------


def test_record_notice_has_multiplier(full_track: Track) -> None:
    create_subscription(create_user("vera"), "record", "morning")
    create_subscription(create_user("late"), "morning")
    record_entry = create_candidate(full_track, 1.3)
    finish_confirmations(record_entry, 1.3)
    events.announce_events()
    assert list_notices("record") == [("vera", str(record_entry.pk))]
    message = compose("record", str(record_entry.pk))
    assert message.title == f"A record on {full_track.name}: Better by mira"
    assert "Multiplier 1.3" in message.lines[0]


# --- the morning report ----------------------------------------------------------------------------------------------

TUESDAY = "2026-03-03"


def test_morning_report_of_finished_run_has_result_card_and_csv(track: Track, node: Node) -> None:
    assert compose("morning", TUESDAY) is None
    run = finish_run(start_night(MONDAY).run, node)
    Run.objects.filter(pk=run.pk).update(finished_at=MONDAY + timedelta(hours=10))
    message = compose("morning", TUESDAY)
    assert message.title == "Morning report: 3 Mar"
    assert message.lines[0].startswith("Small: main, 2 Mar finished with 2.5000 bits per byte.")
    assert message.lines[0].count("2.5000 bits per byte") == 1
    assert message.url.endswith(run.get_absolute_url())
    card, curve_csv = message.files
    assert card.contents.startswith(b"\x89PNG")
    assert curve_csv.contents.decode().splitlines()[0].startswith("series,step,tokens")
    assert len(curve_csv.contents.decode().splitlines()) == 3


@pytest.mark.parametrize(
    ("state", "fields", "text"),
    [
        (Run.State.QUEUED, {}, "It starts as soon as one is."),
        (Run.State.TRAINING, {"fraction": 0.5, "seconds": 10.0}, "is in progress: 50% of its budget"),
        (Run.State.SCORING, {}, "is trained and being scored"),
        (Run.State.FAILED, {"reason": "The loss became NaN."}, "failed: The loss became NaN."),
    ],
)
def test_morning_report_of_unfinished_run_shows_its_state(
    monday_night: Night, state: str, fields: dict[str, Any], text: str
) -> None:
    Run.objects.filter(pk=monday_night.run_id).update(state=state, **fields)
    message = compose("morning", TUESDAY)
    assert text in message.lines[0]
    assert message.files == ()


@time_machine.travel(MONDAY, tick=False)
def test_morning_report_task_sends_once_a_day(track: Track) -> None:
    create_subscription(create_user("vera"), "morning")
    tasks.send_morning_report()
    tasks.send_morning_report()
    assert list_notices("morning") == [("vera", "2026-03-02")]


EVENING = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)  # two hours before the night


@pytest.fixture
def track_without_data() -> Track:
    """A nightly track of a season without data: its night cannot start."""
    schedule.install()
    nightly_track = scene.create_track()
    nightly_track.season.dataset_hash = ""
    nightly_track.season.save()
    return nightly_track


def list_alerts(name: str) -> list[str]:
    return [about for _, about in list_notices("alert") if f".{name}." in about]


def test_alert_for_night_that_will_fail_or_failed_is_sent_to_maintainers_once_a_day(track_without_data: Track) -> None:
    carl, mara = create_user("carl", permissions.COORDINATOR), create_user("mara", permissions.MAINTAINER)
    for user in (carl, mara):
        create_subscription(user, "alert")
    assert ("alert" in list_choosable_topics(carl), "alert" in list_choosable_topics(mara)) == (False, True)
    with time_machine.travel(EVENING - timedelta(hours=6), tick=False):
        tasks.send_alerts()
    assert list_alerts("NightWillFail") == [], "the night is hours away"
    with time_machine.travel(EVENING, tick=False):
        tasks.send_alerts()
        tasks.send_alerts()
    assert list_alerts("NightWillFail") == [f"2026-03-02.NightWillFail.{track_without_data.slug}"]
    with time_machine.travel(EVENING + timedelta(days=1), tick=False):
        tasks.send_alerts()
    assert len(list_alerts("NightWillFail")) == 2
    assert {name for name, _ in list_notices("alert")} == {"mara"}
    track_without_data.season.started_at = EVENING - timedelta(days=3)
    track_without_data.season.save()
    with time_machine.travel(EVENING, tick=False):
        tasks.send_alerts()
    assert list_alerts("NightDidNotFinish") == [f"2026-03-02.NightDidNotFinish.{track_without_data.slug}"]
