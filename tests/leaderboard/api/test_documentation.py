"""The public API: pages of lists, ETags, the pool, limits, and its own description."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from ninja.errors import HttpError
from openapi_pydantic import OpenAPI
from pytest_django import DjangoAssertNumQueries

from leaderboard.api import pagination
from leaderboard.models import Run, Track
from leaderboard.runs import make_run
from scheduler import rate_limits
from scheduler.models import Node, Sponsor
from tests.support import scene

pytestmark = pytest.mark.django_db
API = "/api/v1"
LISTS = ("/", "/tracks", "/entries", "/runs", "/nodes", "/sponsors", "/queue", "/calendar", "/campaigns")


@pytest.mark.parametrize("path", LISTS)
def test_every_list_answers_without_a_token_and_is_304_until_it_changes(client: Client, path: str) -> None:
    scene.night()
    first = client.get(f"{API}{path}")
    assert first.status_code == 200
    if path not in ("/", "/queue"):  # which tells when things leave: as the clock moves, so does that
        assert client.get(f"{API}{path}", headers={"If-None-Match": first["ETag"]}).status_code == 304


def test_the_start_leads_to_what_there_is(client: Client) -> None:
    for address in client.get(f"{API}/").json()["places"].values():
        assert client.get(address.removeprefix("http://127.0.0.1:8000")).status_code == 200, address


def test_a_cursor_leads_through_all_and_says_nothing_to_its_bearer(client: Client, run: Run) -> None:
    made = {run.pk, *(make_run(run.entry, run.track).pk for _ in range(4))}
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(f"{API}/runs?limit=2&cursor={cursor}").json()
        seen += [row["id"] for row in page["items"]]
        cursor = page["cursor"]
        assert cursor is None or re.fullmatch(r"[\w-]+", cursor)
    assert seen == sorted(made, reverse=True)


def test_the_last_page_of_exactly_full_pages_is_the_last(client: Client, run: Run) -> None:
    make_run(run.entry, run.track)
    page = client.get(f"{API}/runs?limit=2").json()
    assert (len(page["items"]), page["cursor"], page["next"]) == (2, None, None)


def test_what_comes_in_meanwhile_moves_no_page(client: Client, run: Run) -> None:
    older = make_run(run.entry, run.track)
    first = client.get(f"{API}/runs?limit=1").json()
    make_run(run.entry, run.track)
    second = client.get(f"{API}/runs?limit=1&cursor={first['cursor']}").json()
    assert [first["items"][0]["id"], second["items"][0]["id"]] == [older.pk, run.pk]


@given(st.text(max_size=60))
def test_a_cursor_of_nobodys_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(HttpError, match="Begin again") as refused:
        pagination.decode_cursor(text)
    assert refused.value.status_code == 422


@given(st.integers(min_value=0, max_value=2**59))
def test_a_cursor_comes_back_as_what_it_was(number: int) -> None:
    assert pagination.decode_cursor(pagination.encode_cursor(number)) == number


def test_entries_are_found_by_state_track_and_author(client: Client, run: Run) -> None:
    def found(query: str) -> list[int]:
        return [row["id"] for row in client.get(f"{API}/entries?{query}").json()["items"]]

    assert found("state=approved,rejected&track=small") == [run.entry_id]
    assert found("state=rejected") == found("track=none") == found("author=nobody") == []


def test_a_node_says_what_it_does_and_who_lends_it(client: Client, maintainer: Any) -> None:
    scene.night()
    Sponsor.objects.create(user=maintainer, name="Rack & Sons")
    Node.objects.update(owner=maintainer)
    found = client.get(f"{API}/nodes").json()["items"]
    assert {row["sponsor"] for row in found} == {"Rack & Sons"}
    assert [work["kind"] for row in found for work in row["now"]] == ["train"]
    Node.objects.update(shown=False)
    assert {row["sponsor"] for row in client.get(f"{API}/nodes").json()["items"]} == {""}


def test_the_queue_tells_runs_and_reasons(client: Client, run: Run) -> None:
    found = client.get(f"{API}/queue").json()
    assert found["live"] == []
    assert [(line["run"]["id"], bool(line["reason"])) for line in found["waiting"]] == [(run.pk, True)]


def test_a_run_tells_its_scores_and_what_happened(client: Client, run: Run) -> None:
    assert client.get(f"{API}/runs/{run.pk}/scores").json() == []
    told = client.get(f"{API}/runs/{run.pk}/events").json()
    assert told
    assert set(told[0]) == {"at", "actor", "sentence"}


def test_readers_are_slowed_down_beyond_what_a_class_of_them_needs(
    client: Client, track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 3)
    answers = [client.get(f"{API}/tracks") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[3]["Retry-After"]) <= 60
    assert "Try again" in answers[3].json()["detail"]
    assert client.get(f"{API}/tracks", REMOTE_ADDR="203.0.113.7").status_code == 200


def test_pool_lists_take_as_many_queries_for_one_row_as_for_many(
    client: Client, node: Node, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        Node.objects.create(name=f"more-{number}", state=Node.State.ONLINE, last_seen=node.registered_at)
    with django_assert_max_num_queries(3):
        client.get(f"{API}/nodes")
    with django_assert_max_num_queries(4):
        client.get(f"{API}/sponsors")


# --- its own description ----------------------------------------------------------------------------------------------


def test_the_document_is_openapi_and_names_every_list(client: Client) -> None:
    document = client.get(f"{API}/openapi.json").json()
    OpenAPI.model_validate(document)
    assert {f"{API}{path}" for path in LISTS} <= set(document["paths"])
    operations = [said for methods in document["paths"].values() for said in methods.values()]
    assert len({said["operationId"] for said in operations}) == len(operations)
    for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
        assert reference in document["components"]["schemas"]


def test_its_page_has_every_operation_and_no_script_of_anybodys(client: Client) -> None:
    page = client.get(f"{API}/docs").content.decode()
    for path, methods in client.get(f"{API}/openapi.json").json()["paths"].items():
        for method in methods:
            assert f'<b class="api-method">{method.upper()}</b> <code>{path}</code>' in page
    assert not re.findall(r"<script(?![^>]*\bsrc=\"/static/)", page)
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page)
    assert "style=" not in page
