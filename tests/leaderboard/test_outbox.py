"""The outbox: each message is handled once in effect, through crashes, errors and lost claims."""

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
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st
from kombu import Connection
from kombu.exceptions import OperationalError

from leaderboard import broker, outbox
from leaderboard.integrations.github import client
from leaderboard.models import OutboxMessage
from leaderboard.outbox import PermanentError, RetryLater
from tests.support.database import get_database_url
from tests.support.github_server import APP, GitHub, get_private_key
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.sql]

SHA = "a" * 40


class KilledError(BaseException):
    """Ends the process: not an `Exception`, so no handler catches it."""


class ExternalService:
    """An external service with one object per key, which counts how often each was created."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.create_counts: dict[str, int] = {}
        self.faults: list[BaseException | str] = []

    def handle(self, message: OutboxMessage) -> Mapping[str, Any]:
        """Handle a message idempotently: look for the object first, then create or change it."""
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, BaseException):
            raise fault
        if message.key not in self.objects:
            self.create_counts[message.key] = self.create_counts.get(message.key, 0) + 1
        self.objects[message.key] = message.payload
        if fault == "killed after":
            raise KilledError
        return {"seen": message.payload}


@pytest.fixture
def external_service(monkeypatch: pytest.MonkeyPatch, db: None) -> ExternalService:
    service = ExternalService()
    monkeypatch.setattr(outbox, "get_handler", lambda kind: service.handle)
    monkeypatch.setattr("celery.app.base.Celery.send_task", lambda *arguments, **more: None)
    return service


def advance_time(seconds: float) -> None:
    """Make `seconds` pass for all messages."""
    span = timedelta(seconds=seconds)
    OutboxMessage.objects.update(not_before=F("not_before") - span, claimed_until=F("claimed_until") - span)


def list_states() -> dict[str, str]:
    return dict(OutboxMessage.objects.values_list("key", "state"))


def test_message_processed_twice_is_handled_once(external_service: ExternalService) -> None:
    message = outbox.enqueue("note", "note:1", {"n": 1})
    outbox.process_message(message.pk)
    outbox.process_message(message.pk)
    message.refresh_from_db()
    assert (message.state, message.result, message.problem, external_service.create_counts) == (
        "done",
        {"seen": {"n": 1}},
        "",
        {"note:1": 1},
    )


def test_message_enqueued_while_claimed_is_handled_again(
    external_service: ExternalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(message: OutboxMessage) -> Mapping[str, Any]:
        if message.payload == {"n": 1}:
            outbox.enqueue("note", "note:1", {"n": 2})
            assert OutboxMessage.objects.get().state == OutboxMessage.State.CLAIMED
        return external_service.handle(message)

    monkeypatch.setattr(outbox, "get_handler", lambda kind: handle)
    outbox.enqueue("note", "note:1", {"n": 1})
    outbox.process_due()
    assert list_states() == {"note:1": "pending"}
    outbox.process_due()
    assert (list_states(), external_service.objects) == ({"note:1": "done"}, {"note:1": {"n": 2}})


def test_claimed_message_is_not_taken_by_others(external_service: ExternalService) -> None:
    message = outbox.enqueue("note", "note:1")
    external_service.faults = [KilledError()]
    with pytest.raises(KilledError):
        outbox.process_message(message.pk)
    assert outbox.process_due() == 0
    advance_time(outbox.CLAIM_TIME.total_seconds() + 1)
    assert outbox.process_due() == 1
    assert list_states() == {"note:1": "done"}


def test_worker_that_lost_its_claim_saves_nothing(
    external_service: ExternalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle_slowly(message: OutboxMessage) -> Mapping[str, Any]:
        advance_time(outbox.CLAIM_TIME.total_seconds() + 1)
        monkeypatch.setattr(outbox, "get_handler", lambda kind: external_service.handle)
        outbox.process_message(message.pk)
        raise PermanentError("Too late to say so.")

    monkeypatch.setattr(outbox, "get_handler", lambda kind: handle_slowly)
    outbox.process_message(outbox.enqueue("note", "note:1", {"n": 1}).pk)
    assert (list_states(), OutboxMessage.objects.get().problem) == ({"note:1": "done"}, "")


def test_failing_message_is_retried_with_backoff(external_service: ExternalService) -> None:
    message = outbox.enqueue("note", "note:1")
    waits = []
    for _ in range(12):
        external_service.faults = [RuntimeError("the moon")]
        outbox.process_message(message.pk)
        message.refresh_from_db()
        waits.append(round((message.not_before - timezone.now()).total_seconds(), -1))
        advance_time(3601)
    assert waits[:4] == [10, 20, 40, 80]
    assert waits[-1] == outbox.MAX_RETRY_WAIT.total_seconds()
    assert (message.state, message.problem) == ("pending", "RuntimeError: the moon")


def test_rate_limited_message_is_retried_after_the_limit(external_service: ExternalService) -> None:
    external_service.faults = [RetryLater("GitHub asks us to wait", timedelta(minutes=14))]
    outbox.enqueue("note", "note:1")
    outbox.process_due()
    advance_time(13 * 60)
    assert outbox.process_due() == 0
    advance_time(60)
    assert outbox.process_due() == 1
    assert list_states() == {"note:1": "done"}


@pytest.mark.django_db(transaction=True)
def test_message_of_rolled_back_transaction_is_not_stored() -> None:
    class AbortedError(Exception):
        pass

    @transaction.atomic
    def enqueue_and_abort() -> None:
        outbox.enqueue("note", "note:1")
        raise AbortedError

    with pytest.raises(AbortedError):
        enqueue_and_abort()
    assert not OutboxMessage.objects.exists()


def test_unreachable_broker_is_tried_once(
    external_service: ExternalService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send_attempts = []
    monkeypatch.setattr(settings, "REDIS_URL", "redis://broker:6379")

    def refuse_connection(*arguments: Any, **more: Any) -> None:
        send_attempts.append(arguments)
        raise ConnectionRefusedError

    monkeypatch.setattr("celery.app.base.Celery.send_task", refuse_connection)
    outbox.notify_worker(OutboxMessage(pk=1, kind="note"))
    outbox.notify_worker(OutboxMessage(pk=2, kind="note"))
    assert len(send_attempts) == 1
    assert caplog.text.count("waits for the schedule") == 1
    cache.delete(broker.BROKER_DOWN)
    outbox.notify_worker(OutboxMessage(pk=3, kind="note"))
    assert len(send_attempts) == 2


def test_unreachable_broker_does_not_block_sender(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def raise_error(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr("kombu.utils.functional.sleep", raise_error)
    unreachable_broker = Connection(
        f"redis+socket://{tmp_path / 'missing.sock'}", transport_options=settings.CELERY_BROKER_TRANSPORT_OPTIONS
    )
    with pytest.raises(OperationalError):
        unreachable_broker.default_channel  # noqa: B018


# --- property test ---------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("enqueue"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("once"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("work"), st.sampled_from(["well", "killed before", "killed after", "later", "refused", "wrong"])),
    st.tuples(st.just("time"), st.sampled_from([5, 700, 4000])),
)
FAULTS: dict[str, Any] = {
    "killed before": KilledError,
    "later": lambda: RetryLater("busy"),
    "refused": lambda: PermanentError("no"),
    "wrong": lambda: RuntimeError("odd"),
}


@given(steps=st.lists(STEPS, max_size=25))
@thoroughness(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_messages_after_any_history_are_applied_once_with_last_payload(
    external_service: ExternalService, steps: list[tuple[Any, ...]]
) -> None:
    OutboxMessage.objects.all().delete()
    external_service.__init__()  # type: ignore[misc]
    expected: dict[str, Any] = {}
    for step, *details in steps:
        if step == "enqueue":
            key, number = details
            outbox.enqueue("note", key, {"n": number})
            expected[key] = {"n": number}
        elif step == "once":
            key, number = f"once-{details[0]}", details[1]
            outbox.enqueue_once("note", key, {"n": number})
            expected.setdefault(key, {"n": number})
        elif step == "time":
            advance_time(details[0])
        else:
            process_with_fault(external_service, details[0])
    for key in expected:  # rejected messages are enqueued again
        outbox.enqueue("note", key, expected[key])
    for _ in range(len(expected) + 1):
        advance_time(4000)
        outbox.process_due()
    assert external_service.objects == expected
    assert set(external_service.create_counts.values()) <= {1}
    assert set(list_states().values()) <= {"done"}


def process_with_fault(external_service: ExternalService, fault: str) -> None:
    """Process the due messages, with a fault at the first one."""
    external_service.faults = [FAULTS[fault]() if fault in FAULTS else fault]
    try:
        outbox.process_due()
    except KilledError:
        pass
    finally:
        external_service.faults = []


# --- a killed process ------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
@pytest.mark.services
def test_worker_killed_before_saving_result_creates_no_duplicate(github: GitHub) -> None:
    outbox.enqueue("github.check", "github.check:1", {"sha": SHA})
    outbox.enqueue("github.check", "github.check:2", {"sha": SHA})
    environment = {
        **os.environ,
        "DATABASE_URL": get_database_url(),
        "GITHUB_API_URL": github.url,
        "GITHUB_APP_ID": APP,
        "GITHUB_PRIVATE_KEY": get_private_key(),
    }

    def run_worker(**more: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "tests.leaderboard.killed_worker"], env={**environment, **more}, timeout=WAIT_SECONDS
        ).returncode

    assert run_worker(KILL="1") == -signal.SIGKILL
    checks = github.repositories["trains/daily"].checks
    assert [row["external_id"] for row in checks.values()] == ["github.check:1"]
    assert list_states() == {"github.check:1": "claimed", "github.check:2": "pending"}
    advance_time(outbox.CLAIM_TIME.total_seconds() + 1)
    assert run_worker() == 0
    assert sorted(row["external_id"] for row in checks.values()) == ["github.check:1", "github.check:2"]
    assert list_states() == {"github.check:1": "done", "github.check:2": "done"}
    assert OutboxMessage.objects.get(key="github.check:1").result == {"check": next(iter(checks))}
    assert client.get_client("trains/daily").find_check(SHA, "train", "github.check:1") == next(iter(checks))
