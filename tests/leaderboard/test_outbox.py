"""What the site does outside of itself happens, and happens once, however often a process dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st
from kombu import Connection
from kombu.exceptions import OperationalError

from leaderboard import outbox
from leaderboard.integrations.github import client
from leaderboard.models import OutboxMessage
from leaderboard.outbox import PermanentError, RetryLater
from tests.support.github_server import APP, GitHub, private_key

SHA = "a" * 40


class Killed(BaseException):
    """The process ends here: nobody catches it, nothing is noted."""


class World:
    """What is outside: a place for each key, and how often something was put there."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.made: dict[str, int] = {}
        self.troubles: list[BaseException | str] = []

    def handle(self, effect: OutboxMessage) -> Mapping[str, Any]:
        """A handler as they should be: it looks first, then makes it so."""
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, BaseException):
            raise trouble
        if effect.key not in self.there:
            self.made[effect.key] = self.made.get(effect.key, 0) + 1
        self.there[effect.key] = effect.payload
        if trouble == "killed after":
            raise Killed
        return {"seen": effect.payload}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, db: None) -> World:
    made = World()
    monkeypatch.setattr(outbox, "get_handler", lambda kind: made.handle)
    monkeypatch.setattr("celery.app.base.Celery.send_task", lambda *arguments, **more: None)
    return made


def later(seconds: float) -> None:
    """Let time pass for every effect."""
    span = timedelta(seconds=seconds)
    OutboxMessage.objects.update(not_before=F("not_before") - span, claimed_until=F("claimed_until") - span)


def states() -> dict[str, str]:
    return dict(OutboxMessage.objects.values_list("key", "state"))


def test_it_is_done_once_and_what_came_of_it_is_kept(world: World) -> None:
    made = outbox.enqueue("note", "note:1", {"n": 1})
    outbox.process_message(made.pk)
    outbox.process_message(made.pk)
    made.refresh_from_db()
    assert (made.state, made.result, made.problem, world.made) == ("done", {"seen": {"n": 1}}, "", {"note:1": 1})


def test_asked_for_again_it_is_done_again_with_the_new_payload(world: World) -> None:
    outbox.enqueue("note", "note:1", {"n": 1})
    outbox.process_due()
    outbox.enqueue("note", "note:1", {"n": 2})
    assert outbox.process_due() == 1
    assert (world.there, world.made) == ({"note:1": {"n": 2}}, {"note:1": 1})


def test_once_for_ever_is_once(world: World) -> None:
    outbox.enqueue_once("note", "note:1", {"n": 1})
    outbox.process_due()
    outbox.enqueue_once("note", "note:1", {"n": 2})
    assert outbox.process_due() == 0
    assert world.there == {"note:1": {"n": 1}}


def test_what_is_asked_for_while_it_is_being_done_is_done_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(effect: OutboxMessage) -> Mapping[str, Any]:
        if effect.payload == {"n": 1}:
            outbox.enqueue("note", "note:1", {"n": 2})
            assert OutboxMessage.objects.get().state == OutboxMessage.State.CLAIMED
        return world.handle(effect)

    monkeypatch.setattr(outbox, "get_handler", lambda kind: handle)
    outbox.enqueue("note", "note:1", {"n": 1})
    outbox.process_due()
    assert states() == {"note:1": "pending"}
    outbox.process_due()
    assert (states(), world.there) == ({"note:1": "done"}, {"note:1": {"n": 2}})


def test_nobody_else_takes_it_while_it_is_being_done(world: World) -> None:
    made = outbox.enqueue("note", "note:1")
    world.troubles = [Killed()]
    with pytest.raises(Killed):
        outbox.process_message(made.pk)
    assert outbox.process_due() == 0
    later(outbox.CLAIM_TIME.total_seconds() + 1)
    assert outbox.process_due() == 1
    assert states() == {"note:1": "done"}


def test_whoever_lost_his_claim_notes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(effect: OutboxMessage) -> Mapping[str, Any]:
        later(outbox.CLAIM_TIME.total_seconds() + 1)
        monkeypatch.setattr(outbox, "get_handler", lambda kind: world.handle)
        outbox.process_message(effect.pk)
        raise PermanentError("Too late to say so.")

    monkeypatch.setattr(outbox, "get_handler", lambda kind: slow)
    outbox.process_message(outbox.enqueue("note", "note:1", {"n": 1}).pk)
    assert (states(), OutboxMessage.objects.get().problem) == ({"note:1": "done"}, "")


def test_it_waits_longer_from_failure_to_failure(world: World) -> None:
    made = outbox.enqueue("note", "note:1")
    waits = []
    for _ in range(12):
        world.troubles = [RuntimeError("the moon")]
        outbox.process_message(made.pk)
        made.refresh_from_db()
        waits.append(round((made.not_before - timezone.now()).total_seconds(), -1))
        later(3601)
    assert waits[:4] == [10, 20, 40, 80]
    assert waits[-1] == outbox.MAX_RETRY_WAIT.total_seconds()
    assert (made.state, made.problem) == ("pending", "RuntimeError: the moon")


def test_a_limit_is_waited_for_as_long_as_it_says(world: World) -> None:
    world.troubles = [RetryLater("GitHub asks us to wait", timedelta(minutes=14))]
    outbox.enqueue("note", "note:1")
    outbox.process_due()
    later(13 * 60)
    assert outbox.process_due() == 0
    later(60)
    assert outbox.process_due() == 1
    assert states() == {"note:1": "done"}


def test_what_is_refused_is_tried_again_only_when_asked_for_again(world: World) -> None:
    world.troubles = [PermanentError("The App is not installed.")]
    outbox.enqueue("note", "note:1")
    outbox.process_due()
    later(10**6)
    assert (outbox.process_due(), states()) == (0, {"note:1": "failed"})
    assert OutboxMessage.objects.get().problem == "The App is not installed."
    outbox.enqueue("note", "note:1")
    outbox.process_due()
    assert (states(), OutboxMessage.objects.get().problem) == ({"note:1": "done"}, "")


@pytest.mark.django_db(transaction=True)
def test_a_cause_that_was_taken_back_has_no_effect() -> None:
    class Never(Exception):
        pass

    @transaction.atomic
    def cause() -> None:
        outbox.enqueue("note", "note:1")
        raise Never

    with pytest.raises(Never):
        cause()
    assert not OutboxMessage.objects.exists()


def test_a_broker_that_is_down_is_waited_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def down(*arguments: Any, **more: Any) -> None:
        asked.append(arguments)
        raise ConnectionRefusedError

    monkeypatch.setattr("celery.app.base.Celery.send_task", down)
    outbox.notify_worker(1)
    outbox.notify_worker(2)
    assert len(asked) == 1
    cache.delete(outbox.NO_BROKER)
    outbox.notify_worker(3)
    assert len(asked) == 2


def test_whoever_sends_a_task_does_not_sleep_over_a_broker_that_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr("kombu.utils.functional.sleep", sleep)
    nobody = Connection(
        f"redis+socket://{tmp_path / 'nobody.sock'}", transport_options=settings.CELERY_BROKER_TRANSPORT_OPTIONS
    )
    with pytest.raises(OperationalError):
        nobody.default_channel  # noqa: B018


# --- whatever happens -------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("want"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("once"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("work"), st.sampled_from(["well", "killed before", "killed after", "later", "refused", "wrong"])),
    st.tuples(st.just("time"), st.sampled_from([5, 700, 4000])),
)
TROUBLES: dict[str, Any] = {
    "killed before": Killed,
    "later": lambda: RetryLater("busy"),
    "refused": lambda: PermanentError("no"),
    "wrong": lambda: RuntimeError("odd"),
}


@given(steps=st.lists(STEPS, max_size=25))
@thoroughness(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_in_the_end_everything_is_as_it_was_last_asked_for_and_nothing_is_doubled(
    world: World, steps: list[tuple[Any, ...]]
) -> None:
    OutboxMessage.objects.all().delete()
    world.__init__()  # type: ignore[misc]
    wanted: dict[str, Any] = {}
    for step, *details in steps:
        if step == "want":
            key, number = details
            outbox.enqueue("note", key, {"n": number})
            wanted[key] = {"n": number}
        elif step == "once":
            key, number = f"once-{details[0]}", details[1]
            outbox.enqueue_once("note", key, {"n": number})
            wanted.setdefault(key, {"n": number})
        elif step == "time":
            later(details[0])
        else:
            work(world, details[0])
    for key in wanted:  # whatever was refused is asked for again
        outbox.enqueue("note", key, wanted[key])
    for _ in range(len(wanted) + 1):
        later(4000)
        outbox.process_due()
    assert world.there == wanted
    assert set(world.made.values()) <= {1}
    assert set(states().values()) <= {"done"}


def work(world: World, how: str) -> None:
    """One sweep of a worker that something happens to on its first effect."""
    world.troubles = [TROUBLES[how]() if how in TROUBLES else how]
    try:
        outbox.process_due()
    except Killed:
        pass
    finally:
        world.troubles = []


# --- a real process, a real kill --------------------------------------------------------------------------------------


def database_url() -> str:
    """The test's own database, for another process."""
    known = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{known['NAME']}"
    return f"postgres://{known['USER']}:{known['PASSWORD']}@{known['HOST']}:{known['PORT']}/{known['NAME']}"


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_killed_between_doing_and_noting_doubles_nothing(github: GitHub) -> None:
    outbox.enqueue("github.check", "github.check:1", {"sha": SHA})
    outbox.enqueue("github.check", "github.check:2", {"sha": SHA})
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "GITHUB_API_URL": github.url,
        "GITHUB_APP_ID": APP,
        "GITHUB_PRIVATE_KEY": private_key(),
    }

    def worker(**more: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "tests.support.killed_worker"], env={**environment, **more}, timeout=120
        ).returncode

    assert worker(KILL="1") == -signal.SIGKILL
    checks = github.repositories["trains/daily"].checks
    assert [row["external_id"] for row in checks.values()] == ["github.check:1"]
    assert states() == {"github.check:1": "claimed", "github.check:2": "pending"}
    later(outbox.CLAIM_TIME.total_seconds() + 1)
    assert worker() == 0
    assert sorted(row["external_id"] for row in checks.values()) == ["github.check:1", "github.check:2"]
    assert states() == {"github.check:1": "done", "github.check:2": "done"}
    assert OutboxMessage.objects.get(key="github.check:1").result == {"check": next(iter(checks))}
    assert client.get_client("trains/daily").find_check(SHA, "train", "github.check:1") == next(iter(checks))
