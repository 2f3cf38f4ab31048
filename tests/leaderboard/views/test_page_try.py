"""The page for visitor prompts, the about page and the page footer."""

from __future__ import annotations

import pytest
from django.test import Client

from leaderboard.models import Generation, Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.leaderboard.conftest import finish_run
from tests.leaderboard.views.test_page_board import extract_text
from tests.support.node_jobs import finish_job, lease_job

PROMPT = {"prompt": "The <train>", "tokens": "50"}


@pytest.fixture
def finished_run(run: Run, capable_node: Node) -> Run:
    return finish_run(run, capable_node)


def post_prompt(client: Client, run: Run, **fields: str) -> Generation:
    response = client.post("/try/", {**PROMPT, "run": run.pk, **fields})
    assert response.status_code == 302, extract_text(response.content)
    return Generation.objects.get(token=response["Location"].split("/")[2])


def test_prompt_page_shows_queue_then_escaped_text(client: Client, finished_run: Run, capable_node: Node) -> None:
    generation = post_prompt(client, finished_run)
    page = client.get(generation.get_absolute_url()).content.decode()
    assert "The &lt;train&gt;" in page
    assert "1st in the queue." in extract_text(page.encode())
    assert '<noscript><meta http-equiv="refresh"' in page, "the page reloads without JavaScript"
    assert 'name="robots" content="noindex"' in page
    lease_job(generation.job, capable_node)
    get_job_kind(generation.job).handle_metrics(generation.job, [{"kind": "text", "text": " <script>leaves"}])
    live = client.get(f"{generation.get_absolute_url()}live.json")
    assert "&lt;script&gt;leaves" in live.json()["parts"]["written"]
    assert 0 < live.json()["wait"] < 1
    unchanged = client.get(f"{generation.get_absolute_url()}live.json", headers={"If-None-Match": live["ETag"]})
    assert unchanged.status_code == 304
    finish_job(generation.job, {"tokens": 9, "seconds": 3.0, "ended": "length"})
    page = client.get(generation.get_absolute_url()).content.decode()
    assert "9 tokens, 3 a second." in extract_text(page.encode())
    assert "refresh" not in page
    assert client.get(f"{generation.get_absolute_url()}live.json").json()["wait"] == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 302),
        ({"Origin": "https://elsewhere.example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver"}, 302),
        ({}, 302),
    ],
)
def test_prompt_from_other_origin_is_forbidden(finished_run: Run, headers: dict[str, str], status: int) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/try/", {**PROMPT, "run": finished_run.pk}, headers=headers).status_code == status
