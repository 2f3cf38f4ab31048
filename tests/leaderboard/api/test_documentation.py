"""The public API: pagination, ETags, the pool, rate limits and the documentation page."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client
from openapi_pydantic import OpenAPI
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run, Track
from leaderboard.runs import make_run
from scheduler import rate_limits
from scheduler.models import Node
from tests.support import scene

pytestmark = pytest.mark.django_db
API = "/api/v1"
LISTS = ("/", "/tracks", "/entries", "/runs", "/nodes", "/sponsors", "/queue", "/calendar", "/campaigns")


@pytest.mark.parametrize("path", LISTS)
def test_list_without_token_has_an_etag(client: Client, path: str) -> None:
    scene.create_night_board()
    first = client.get(f"{API}{path}")
    assert first.status_code == 200
    if path not in ("/", "/queue"):  # its estimates change with time
        assert client.get(f"{API}{path}", headers={"If-None-Match": first["ETag"]}).status_code == 304


def test_cursor_pages_through_all_rows(client: Client, run: Run) -> None:
    run_ids = {run.pk, *(make_run(run.entry, run.track).pk for _ in range(4))}
    listed_ids: list[int] = []
    page = {"cursor": 2**63 - 1}
    while page["cursor"] is not None:
        page = client.get(f"{API}/runs?limit=2&cursor={page['cursor']}").json()
        listed_ids += [row["id"] for row in page["items"]]
    assert listed_ids == sorted(run_ids, reverse=True)


def test_cursor_with_new_rows_continues_where_it_was(client: Client, run: Run) -> None:
    older = make_run(run.entry, run.track)
    first = client.get(f"{API}/runs?limit=1").json()
    make_run(run.entry, run.track)
    second = client.get(f"{API}/runs?limit=1&cursor={first['cursor']}").json()
    assert [first["items"][0]["id"], second["items"][0]["id"]] == [older.pk, run.pk]


def test_run_lists_its_scores_and_events(client: Client, run: Run) -> None:
    assert client.get(f"{API}/runs/{run.pk}/scores").json() == []
    events = client.get(f"{API}/runs/{run.pk}/events").json()
    assert events
    assert set(events[0]) == {"at", "actor", "sentence"}


@pytest.mark.usefixtures("rate_limit_clock")
def test_requests_over_the_limit_of_an_address_are_429(
    client: Client, track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 3)
    responses = [client.get(f"{API}/tracks") for _ in range(4)]
    assert [response.status_code for response in responses] == [200, 200, 200, 429]
    assert 0 < int(responses[3]["Retry-After"]) <= 60
    assert "Try again" in responses[3].json()["detail"]
    assert client.get(f"{API}/tracks", REMOTE_ADDR="203.0.113.7").status_code == 200


def test_pool_lists_with_many_rows_take_the_same_queries(
    client: Client, node: Node, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        Node.objects.create(name=f"more-{number}", state=Node.State.ONLINE, last_seen=node.registered_at)
    with django_assert_max_num_queries(3):
        client.get(f"{API}/nodes")
    with django_assert_max_num_queries(4):
        client.get(f"{API}/sponsors")


# --- documentation ---------------------------------------------------------------------------------------------------


def test_openapi_document_is_valid_and_lists_all_paths(client: Client) -> None:
    document = client.get(f"{API}/openapi.json").json()
    OpenAPI.model_validate(document)
    assert {f"{API}{path}" for path in LISTS} <= set(document["paths"])
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
        assert reference in document["components"]["schemas"]
