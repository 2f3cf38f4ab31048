"""Alert notices to maintainers, for nightly runs in particular."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.contrib.auth.models import User

from dailytrain import schedule
from leaderboard import permissions, tasks
from leaderboard.models import OutboxMessage, Subscription, Track
from leaderboard.notifications.topics import TOPICS, list_choosable_topics
from tests.support import scene

pytestmark = pytest.mark.django_db
EVENING = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)  # two hours before the night


@pytest.fixture
def track() -> Track:
    """A nightly track of a season without data: its night cannot start."""
    schedule.install()
    nightly_track = scene.create_track()
    nightly_track.season.dataset_hash = ""
    nightly_track.season.save()
    return nightly_track


def create_alert_subscriber(name: str, *roles: str) -> User:
    user = User.objects.create_user(name)
    for role in roles:
        permissions.grant_role(user, role, None)
    Subscription.objects.create(
        user=user, kind="email", address="ada@example.org", topics=["alert"], confirmed_at=EVENING
    )
    return user


def list_notices(name: str) -> list[str]:
    notices = OutboxMessage.objects.filter(kind="notice", payload__topic="alert")
    return [notice.payload["about"] for notice in notices if f".{name}." in notice.payload["about"]]


def test_alert_for_night_that_will_not_start_is_sent_once_a_day(track: Track) -> None:
    create_alert_subscriber("mara", permissions.MAINTAINER)
    with time_machine.travel(EVENING, tick=False):
        tasks.send_alerts()
        tasks.send_alerts()
    assert list_notices("NightWillFail") == [f"2026-03-02.NightWillFail.{track.slug}"]
    with time_machine.travel(EVENING + timedelta(days=1), tick=False):
        tasks.send_alerts()
    assert len(list_notices("NightWillFail")) == 2


def test_alert_for_night_hours_away_is_not_sent(track: Track) -> None:
    create_alert_subscriber("mara", permissions.MAINTAINER)
    with time_machine.travel(EVENING - timedelta(hours=6), tick=False):
        tasks.send_alerts()
    assert list_notices("NightWillFail") == []


def test_alert_message_names_the_fault_until_it_is_resolved(track: Track) -> None:
    with time_machine.travel(EVENING, tick=False):
        message = TOPICS["alert"].compose(f"2026-03-02.NightWillFail.{track.slug}")
        assert message
        assert message.title == f"The Daily Train: NightWillFail ({track.slug})"
        assert "Run manage.py check_night" in message.lines[1]
        Track.objects.update(nightly=False)
        assert TOPICS["alert"].compose(f"2026-03-02.NightWillFail.{track.slug}") is None


def test_alert_for_night_that_did_not_finish_is_sent(track: Track) -> None:
    create_alert_subscriber("mara", permissions.MAINTAINER)
    track.season.started_at = EVENING - timedelta(days=3)
    track.season.save()
    with time_machine.travel(EVENING, tick=False):
        tasks.send_alerts()
    assert list_notices("NightDidNotFinish") == [f"2026-03-02.NightDidNotFinish.{track.slug}"]


def test_alert_topic_is_for_maintainers_only(track: Track) -> None:
    carl, mara = (
        create_alert_subscriber("carl", permissions.COORDINATOR),
        create_alert_subscriber("mara", permissions.MAINTAINER),
    )
    assert ("alert" in list_choosable_topics(carl), "alert" in list_choosable_topics(mara)) == (False, True)
    with time_machine.travel(EVENING, tick=False):
        tasks.send_alerts()
    notices = OutboxMessage.objects.filter(kind="notice", payload__topic="alert")
    assert {notice.payload["subscription"] for notice in notices} == {mara.subscriptions.get().pk}
