"""The page for visitor prompts, the about page and the page footer."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from leaderboard import runs
from leaderboard.job_handlers import generation
from leaderboard.models import Generation, Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, Node
from tests.leaderboard.conftest import finish_run
from tests.leaderboard.views.test_page_board import extract_text
from tests.support.node_jobs import lease_job

PROMPT = {"prompt": "The <train>", "tokens": "50"}


@pytest.fixture
def finished_run(run: Run, capable_node: Node) -> Run:
    return finish_run(run, capable_node)


def post_prompt(client: Client, run: Run, **fields: str) -> Generation:
    response = client.post("/try/", {**PROMPT, "run": run.pk, **fields})
    assert response.status_code == 302, extract_text(response.content)
    return Generation.objects.get(token=response["Location"].split("/")[2])


def test_try_page_selects_best_run_or_requested_one(
    client: Client, finished_run: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(16):
        page = client.get("/try/").content.decode()
    assert "A machine is free just now." in extract_text(page.encode())
    assert f'<option value="{finished_run.pk}" selected>' in page
    assert f'href="/try/?run={finished_run.pk}"' in client.get(finished_run.get_absolute_url()).content.decode()
    assert "In the beginning</textarea>" in client.get("/try/?run=999999&prompt=In the beginning").content.decode()


def test_try_page_shows_expected_wait(client: Client, finished_run: Run, capable_node: Node) -> None:
    lease = lease_job(Job.objects.get(run=runs.rerun(finished_run, actor="mara")), capable_node)
    Job.objects.filter(pk=lease.job_id).update(expected_seconds=600)
    assert "the first is free at about" in extract_text(client.get("/try/").content)
    Job.objects.filter(pk=lease.job_id).update(expected_seconds=100_000)
    assert "later than a prompt waits" in extract_text(client.get("/try/").content)
    Node.objects.update(state=Node.State.OFFLINE)
    assert "No machine that may write is here" in extract_text(client.get("/try/").content)


def test_try_page_without_model_or_when_closed_shows_a_message(client: Client, track: Any, settings: Any) -> None:
    assert "There is no model yet" in extract_text(client.get("/try/").content)
    settings.GENERATE_PER_HOUR = 0
    assert "does not accept prompts" in extract_text(client.get("/try/").content)


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
    Job.objects.filter(pk=generation.job_id).update(state=Job.State.DONE)
    Generation.objects.update(written=9, seconds=3.0, ended="length")
    page = client.get(generation.get_absolute_url()).content.decode()
    assert "9 tokens, 3 a second." in extract_text(page.encode())
    assert "refresh" not in page
    assert client.get(f"{generation.get_absolute_url()}live.json").json()["wait"] == 0


def test_prompt_page_of_cancelled_job_shows_reason(client: Client, finished_run: Run) -> None:
    generation = post_prompt(client, finished_run)
    Job.objects.filter(pk=generation.job_id).update(state=Job.State.CANCELLED, reason="No machine was free.")
    assert "cancelled No machine was free." in extract_text(client.get(generation.get_absolute_url()).content)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"prompt": ""}, 400), ({"prompt": "x" * 1001}, 400), ({"tokens": "5000"}, 400), ({"temperature": "nan"}, 400)],
)
def test_invalid_prompt_shows_error_and_keeps_input(
    client: Client, finished_run: Run, fields: dict[str, str], status: int
) -> None:
    response = client.post("/try/", {**PROMPT, "run": finished_run.pk, **fields})
    assert response.status_code == status
    assert "Not sent. Correct the marked fields." in extract_text(response.content)
    assert not Generation.objects.exists()


def test_prompt_while_site_accepts_none_gets_503(client: Client, finished_run: Run, settings: Any) -> None:
    settings.GENERATE_PER_HOUR = 0
    response = client.post("/try/", {**PROMPT, "run": finished_run.pk})
    assert response.status_code == 503
    assert "This site does not accept prompts at present." in extract_text(response.content)


def test_prompt_for_run_without_weights_gets_409(
    client: Client, finished_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are deleted after the form has offered the run."""
    monkeypatch.setattr(generation, "can_generate", lambda run: False)
    response = client.post("/try/", {**PROMPT, "run": finished_run.pk})
    assert response.status_code == 409
    assert "has no weights" in extract_text(response.content)


@pytest.mark.usefixtures("rate_limit_clock")
def test_prompts_over_rate_limit_get_429(client: Client, finished_run: Run) -> None:
    for _ in range(4):
        post_prompt(client, finished_run)
    response = client.post("/try/", {**PROMPT, "run": finished_run.pk})
    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= 60
    assert "Try again in 1 min." in extract_text(response.content)
    assert "The &lt;train&gt;</textarea>" in response.content.decode()


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


def test_prompt_forms_set_no_cookie(client: Client, finished_run: Run) -> None:
    for address in ("/try/", finished_run.get_absolute_url(), post_prompt(client, finished_run).get_absolute_url()):
        assert not client.get(address).cookies, address


def test_queue_page_shows_prompt_jobs(client: Client, finished_run: Run, capable_node: Node) -> None:
    generation = post_prompt(client, finished_run)
    post_prompt(client, finished_run)
    lease_job(generation.job, capable_node)
    Node.objects.update(last_seen=timezone.now())
    page = extract_text(client.get("/queue/").content)
    assert "Prompts Visitors who try a model. 1 running, 1 waiting" in page
    assert "Prompts" in client.get("/queue/live.json").json()["parts"]["background-jobs"]
    assert "Smeared keys, visitor prompt" in extract_text(client.get("/nodes/").content)


def test_site_totals_count_runs_and_tokens(client: Client, finished_run: Run) -> None:
    for address in ("/nodes/", "/queue/", "/about/"):
        page = extract_text(client.get(address).content)
        assert "runs scored 1" in page, address
        assert "tokens trained on 10.2 k" in page, address


def test_page_footer_has_about_chat_and_acknowledgements(client: Client, track: Any, settings: Any) -> None:
    settings.CHAT_URL = "https://chat.example.org/train"
    settings.ACKNOWLEDGEMENTS = ["The Lab https://lab.example.org", "Ada Lovelace"]
    page = " ".join(client.get("/").content.decode().split())
    assert 'href="/about/"' in page
    assert '<a href="https://chat.example.org/train" rel="noopener">Chat</a>' in page
    assert '<a href="https://lab.example.org" rel="noopener">The Lab</a>, Ada Lovelace' in page
    settings.CHAT_URL = ""
    assert ">Chat<" not in client.get("/about/").content.decode()
