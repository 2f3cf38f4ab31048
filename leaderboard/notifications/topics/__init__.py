"""Topics of notices: one module each, registered here."""

from __future__ import annotations

from typing import Protocol

from django.contrib.auth.models import User

from leaderboard.notifications.message import Message
from leaderboard.notifications.topics import approvals, morning_report, nodes, records


class Topic(Protocol):
    """A module. `about` identifies the subject: a date, or the id of a row."""

    @property
    def LABEL(self) -> str: ...
    @property
    def HINT(self) -> str: ...

    def can_choose(self, user: User) -> bool:
        """Return whether the user may subscribe."""

    def is_relevant(self, user: User, about: str) -> bool:
        """Return whether the notice concerns this subscriber. Checked when it is queued and before it is sent."""

    def compose(self, about: str) -> Message | None:
        """Return the message as of now; None if it is obsolete."""


TOPICS: dict[str, Topic] = {"morning": morning_report, "record": records, "node": nodes, "approval": approvals}


def list_choosable_topics(user: User) -> dict[str, Topic]:
    return {key: topic for key, topic in TOPICS.items() if topic.can_choose(user)}
