"""The outbox: each message is handled once in effect, through crashes, errors and lost claims."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st

from leaderboard import broker, outbox
from leaderboard.models import OutboxMessage
from leaderboard.outbox import PermanentError, RetryLater

pytestmark = [pytest.mark.processes, pytest.mark.sql]


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


@pytest.fixture
def no_server(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure a broker that does not run."""
    settings.EMBEDDED_REDIS = tmp_path / "redis.sock"
    settings.REDIS_URL = settings.EMBEDDED_REDIS_URL = f"redis+socket://{settings.EMBEDDED_REDIS}"

    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr(broker.current_app, "send_task", refuse)
    cache.clear()


def test_task_before_the_embedded_broker_runs_waits_silently(no_server: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        broker.send_task("recompute_standings", 1)
    assert caplog.records == []


def test_task_with_a_broker_that_is_down_warns_once(
    no_server: None, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_URL = "redis://broker:6379"
    with caplog.at_level(logging.WARNING):
        broker.send_task("recompute_standings", 1)
        outbox.notify_worker(OutboxMessage(pk=2, kind="note"))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["recompute_standings(1) waits for the schedule: no server"]
