"""What there is to hear of: one file each, one line here."""

from __future__ import annotations

from typing import Protocol

from django.contrib.auth.models import User

from leaderboard.notifications.message import Message
from leaderboard.notifications.topics import approvals, morning_report, nodes, records


class Topic(Protocol):
    """A module. `about` names the thing in question: a date, or the id of a row."""

    @property
    def LABEL(self) -> str: ...
    @property
    def HINT(self) -> str: ...

    def can_choose(self, user: User) -> bool:
        """Whether this person can subscribe to it."""

    def is_relevant(self, user: User, about: str) -> bool:
        """Whether this notice is for this subscriber; asked when it arises, and again before it is sent."""

    def compose(self, about: str) -> Message | None:
        """Return what there is to say by now; None where that is nothing any more."""


TOPICS: dict[str, Topic] = {"morning": morning_report, "record": records, "node": nodes, "approval": approvals}


def list_choosable_topics(user: User) -> dict[str, Topic]:
    return {key: topic for key, topic in TOPICS.items() if topic.can_choose(user)}
