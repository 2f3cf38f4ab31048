"""Signed deliveries whose values have other types than GitHub documents: ignored or refused, never retried."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from leaderboard import outbox
from leaderboard.integrations.github import deliveries
from leaderboard.models import Installation, OutboxMessage
from tests.support import github_payloads as payloads

pytestmark = pytest.mark.django_db

REPOSITORY = payloads.repository("trains/daily")
PULL = payloads.pull(REPOSITORY, 7, "a" * 40)
INSTALLATION = {"id": 4711, "account": {"login": "trains"}}
VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "", "x", [], [1], [[]], {}, {"full_name": []})


@pytest.fixture(autouse=True)
def _main_repository_setting(settings: Any) -> None:
    settings.GITHUB_REPOSITORY = "trains/daily"


def build_payloads() -> dict[str, dict[str, Any]]:
    """Return a valid payload for each event that the site handles."""
    about = {"repository": REPOSITORY, "sender": payloads.user(), "installation": INSTALLATION}
    check = {"id": 12, "external_id": "entry:1", "completed_at": payloads.NOW}
    events = {
        "pull_request": {"action": "opened", "number": 7, "pull_request": PULL, **about},
        "issue_comment": {
            "action": "created",
            "issue": {"number": 7, "pull_request": {"url": "x"}},
            "comment": {"id": 5, "body": "/rerun", "created_at": payloads.NOW, "user": payloads.user()},
            **about,
        },
        "check_run": {"action": "rerequested", "check_run": check, **about},
        "installation": {"action": "created", "repositories": [{"full_name": "trains/daily"}], **about},
        "installation_repositories": {
            "action": "added",
            "repositories_added": [{"full_name": "trains/daily"}],
            "repositories_removed": [],
            **about,
        },
    }
    assert set(events) == set(deliveries.EVENTS)
    return events


PAYLOADS = build_payloads()


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a payload."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from list_paths(inner, (*path, key))


def replace_value(payload: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(payload)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


def process_delivery(event: str, payload: dict[str, Any]) -> OutboxMessage:
    body = json.dumps({**payload, "salt": str(uuid4())}).encode()
    delivery = deliveries.store_delivery(event, body, payload)
    assert delivery is not None
    outbox.process_message(delivery.pk)
    delivery.refresh_from_db()
    return delivery


@pytest.mark.parametrize("event", PAYLOADS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_delivery_with_wrong_top_level_value_is_not_retried(event: str, value: Any) -> None:
    for name in PAYLOADS[event]:
        delivery = process_delivery(event, {**PAYLOADS[event], name: value})
        assert delivery.state != OutboxMessage.State.PENDING, delivery.problem


@given(data=st.data())
@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_delivery_with_any_wrong_value_is_not_retried(data: st.DataObject) -> None:
    event = data.draw(st.sampled_from(sorted(PAYLOADS)))
    path = data.draw(st.sampled_from(list(list_paths(PAYLOADS[event]))))
    value = data.draw(st.sampled_from(VALUES))

    delivery = process_delivery(event, replace_value(PAYLOADS[event], path, value))

    assert delivery.state != OutboxMessage.State.PENDING, delivery.problem


def test_installation_with_malformed_rows_stores_valid_names_only() -> None:
    rows = [{"full_name": "trains/daily"}, {"full_name": 3}, [], "x", {}]
    assert process_delivery("installation", {**PAYLOADS["installation"], "repositories": rows}).problem == ""
    assert Installation.objects.get().repositories == ["trains/daily"]
