"""Topics of notices: what they say, and whom they concern."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from leaderboard import permissions
from leaderboard.models import Entry
from leaderboard.notifications import morning_report, site_alerts
from leaderboard.notifications.message import Message
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import refresh_standings
from scheduler.models import Event, Node
from scheduler.node_health import describe_failure


class Topic:
    """The base class. `about` identifies the subject of a notice: a date, or the id of a row."""

    label: str
    hint: str

    def can_choose(self, user: User) -> bool:
        """Return whether the user may subscribe."""
        return True

    def find_subject(self, about: str) -> Any:
        """Return what the notice is about; None if it is gone."""
        return about

    def is_relevant(self, user: User, subject: Any) -> bool:
        """Return whether the notice concerns this subscriber. Checked when it is queued and before it is sent."""
        return True

    def compose(self, subject: Any, /) -> Message | None:
        """Return the message as of now; None if it is obsolete."""
        raise NotImplementedError


class MorningReportTopic(Topic):
    """`about`: the day, as 2026-11-21."""

    label = "Morning report"
    hint = "Every morning: last night's result, its curve as an image and its metrics as CSV."

    def compose(self, day: str, /) -> Message | None:
        return morning_report.compose_report(date.fromisoformat(day))


class RecordTopic(Topic):
    """`about`: the entry's id."""

    label = "Record"
    hint = "A record was confirmed."

    def find_subject(self, about: str) -> Entry | None:
        return Entry.objects.select_related("track__season__baseline").filter(pk=int(about)).first()

    def compose(self, entry: Entry, /) -> Message | None:
        by = f" by {entry.author}" if entry.author else ""
        table = refresh_standings(entry.track)
        row = table.get_row(entry.pk)
        standing = (explanations.describe_standing(row, table),) if row else ()
        return Message(
            title=f"A record on {entry.track.name}: {entry.title}{by}",
            lines=(*standing, "Confirmed with new seeds on independent trusted nodes."),
            url=settings.SITE_URL + entry.get_absolute_url(),
        )


class NodeTopic(Topic):
    """A node is offline or fails: for its owner and for maintainers. `about`: the Event's id."""

    label = "Node offline or failing"
    hint = "A node that you lend is offline, or gets no jobs because it fails. Maintainers get notices of all nodes."

    def find_subject(self, about: str) -> Node | None:
        event = Event.objects.filter(pk=int(about), target_kind="node").first()
        return Node.objects.filter(pk=event.target_id).first() if event else None

    def is_relevant(self, user: User, subject: Node) -> bool:
        return subject.owner_id == user.pk or permissions.is_maintainer(user)

    def compose(self, node: Node, /) -> Message | None:
        if node.state == Node.State.FAILING:
            return Message(
                title=f"{node.name} fails",
                lines=(describe_failure(node),),
                url=settings.SITE_URL + reverse("node", args=[node.pk]),
            )
        if node.state != Node.State.OFFLINE:
            return None
        line = "It has not sent a request for two minutes. Its job continues on another node, from the last checkpoint."
        return Message(
            title=f"{node.name} is offline",
            lines=(line, "If it should be lent now, check that the machine is on and the agent is running."),
            url=settings.SITE_URL + reverse("nodes"),
        )


class ApprovalTopic(Topic):
    """An entry waits for approval: for users who may approve it. `about`: the entry's id and its smoke test's."""

    label = "Waiting for approval"
    hint = "An entry has passed its smoke test, or needs none, and waits for approval."

    def can_choose(self, user: User) -> bool:
        return bool(permissions.get_roles(user) & set(permissions.STAFF))

    def find_subject(self, about: str) -> Entry | None:
        return Entry.objects.select_related("track").filter(pk=int(about.partition(".")[0])).first()

    def is_relevant(self, user: User, subject: Entry) -> bool:
        return permissions.can_approve(user, subject)

    def compose(self, entry: Entry, /) -> Message | None:
        if not is_waiting_for_approval(entry):
            return None
        by = f" by {entry.author}" if entry.author else ""
        hypothesis = (f"Its hypothesis: {' '.join(entry.hypothesis.split())[:300]}",) if entry.hypothesis else ()
        smoke = (entry.smoke_sentence,) if entry.smoke_sentence else ()
        return Message(
            title=f"Waits for approval: {entry.title}",
            lines=(f"{entry.architecture}{by}, commit {entry.sha[:8]}, for {entry.track.name}.", *hypothesis, *smoke),
            url=settings.SITE_URL + entry.get_absolute_url(),
        )


def is_waiting_for_approval(entry: Entry) -> bool:
    """Return whether only the approval is missing."""
    return entry.needs_person and entry.smoke.get("passed", True) is not False


class AlertTopic(Topic):
    """A value of the site is above its limit. `about`: the day, the alert and its label."""

    label = "Site alert"
    hint = "A night will not start or did not finish, the disk is full, beat is silent: what the monitoring page shows."

    def can_choose(self, user: User) -> bool:
        return permissions.is_maintainer(user)

    def is_relevant(self, user: User, subject: str) -> bool:
        return permissions.is_maintainer(user)

    def compose(self, about: str, /) -> Message | None:
        return site_alerts.compose_alert(about)


TOPICS: dict[str, Topic] = {
    "morning": MorningReportTopic(),
    "record": RecordTopic(),
    "node": NodeTopic(),
    "approval": ApprovalTopic(),
    "alert": AlertTopic(),
}


def list_choosable_topics(user: User) -> dict[str, Topic]:
    return {key: topic for key, topic in TOPICS.items() if topic.can_choose(user)}
