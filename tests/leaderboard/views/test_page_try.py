"""Try it, how it works, and the foot of every page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Generation, Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, Node
from tests.leaderboard.conftest import finish, lease
from tests.leaderboard.views.test_page_board import words

PROMPT = {"prompt": "The <train>", "tokens": "50"}


@pytest.fixture
def arrived(run: Run, able: Node) -> Run:
    return finish(run, able)


def asked(client: Client, run: Run, **fields: str) -> Generation:
    answer = client.post("/try/", {**PROMPT, "run": run.pk, **fields})
    assert answer.status_code == 302, words(answer.content)
    return Generation.objects.get(token=answer["Location"].split("/")[2])


def test_the_best_model_of_the_board_is_offered_first_and_any_other_by_its_number(
    client: Client, arrived: Run, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(14):
        page = client.get("/try/").content.decode()
    assert "A machine is free just now." in words(page.encode())
    assert f'<option value="{arrived.pk}" selected>' in page
    assert f'href="/try/?run={arrived.pk}"' in client.get(arrived.get_absolute_url()).content.decode()
    assert "In the beginning</textarea>" in client.get("/try/?run=999999&prompt=In the beginning").content.decode()


def test_who_has_to_wait_is_told_before(client: Client, arrived: Run, able: Node) -> None:
    held = lease(Job.objects.get(pk=arrived.job_id), able)
    Job.objects.filter(pk=held.job_id).update(expected_seconds=600)
    assert "the first is free at about" in words(client.get("/try/").content)
    Job.objects.filter(pk=held.job_id).update(expected_seconds=100_000)
    assert "later than a prompt waits" in words(client.get("/try/").content)
    Node.objects.update(state=Node.State.OFFLINE)
    assert "No machine that may write is here" in words(client.get("/try/").content)


def test_without_a_model_or_an_open_door_the_page_says_so(client: Client, track: Any, settings: Any) -> None:
    assert "There is no model yet" in words(client.get("/try/").content)
    settings.GENERATE_PER_HOUR = 0
    assert "does not accept prompts" in words(client.get("/try/").content)


def test_a_prompt_has_a_page_on_which_it_waits_is_answered_and_stays_text(
    client: Client, arrived: Run, able: Node
) -> None:
    mine = asked(client, arrived)
    page = client.get(mine.get_absolute_url()).content.decode()
    assert "The &lt;train&gt;" in page
    assert "1st in the queue." in words(page.encode())
    assert '<noscript><meta http-equiv="refresh"' in page, "without JavaScript it loads itself anew"
    assert 'name="robots" content="noindex"' in page
    lease(mine.job, able)
    get_job_kind(mine.job).handle_metrics(mine.job, [{"kind": "text", "text": " <script>leaves"}])
    live = client.get(f"{mine.get_absolute_url()}live.json")
    assert "&lt;script&gt;leaves" in live.json()["parts"]["written"]
    assert 0 < live.json()["wait"] < 1
    again = client.get(f"{mine.get_absolute_url()}live.json", headers={"If-None-Match": live["ETag"]})
    assert again.status_code == 304
    Job.objects.filter(pk=mine.job_id).update(state=Job.State.DONE)
    Generation.objects.update(written=9, seconds=3.0, ended="length")
    page = client.get(mine.get_absolute_url()).content.decode()
    assert "9 tokens, 3 a second." in words(page.encode())
    assert "refresh" not in page
    assert client.get(f"{mine.get_absolute_url()}live.json").json()["wait"] == 0


def test_one_that_could_not_be_answered_says_why(client: Client, arrived: Run) -> None:
    mine = asked(client, arrived)
    Job.objects.filter(pk=mine.job_id).update(state=Job.State.CANCELLED, reason="No machine was free.")
    assert "cancelled No machine was free." in words(client.get(mine.get_absolute_url()).content)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"prompt": ""}, 400), ({"prompt": "x" * 1001}, 400), ({"tokens": "5000"}, 400), ({"temperature": "nan"}, 400)],
)
def test_what_cannot_be_asked_is_told_and_stays_in_the_form(
    client: Client, arrived: Run, fields: dict[str, str], status: int
) -> None:
    answer = client.post("/try/", {**PROMPT, "run": arrived.pk, **fields})
    assert answer.status_code == status
    assert "What you typed is still here" in words(answer.content)
    assert not Generation.objects.exists()


def test_whoever_asks_too_often_is_told_to_wait(client: Client, arrived: Run) -> None:
    for _ in range(4):
        asked(client, arrived)
    answer = client.post("/try/", {**PROMPT, "run": arrived.pk})
    assert answer.status_code == 429
    assert "Try again in a few minutes" in words(answer.content)
    assert "The &lt;train&gt;</textarea>" in answer.content.decode()


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
def test_another_sites_page_cannot_ask_by_a_visitors_browser(
    arrived: Run, headers: dict[str, str], status: int
) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/try/", {**PROMPT, "run": arrived.pk}, headers=headers).status_code == status


def test_the_forms_need_no_cookie_so_that_a_runs_page_can_be_kept(client: Client, arrived: Run) -> None:
    for address in ("/try/", arrived.get_absolute_url(), asked(client, arrived).get_absolute_url()):
        assert not client.get(address).cookies, address


def test_the_queue_tells_what_nodes_do_beside_the_trains(client: Client, arrived: Run, able: Node) -> None:
    mine = asked(client, arrived)
    asked(client, arrived)
    lease(mine.job, able)
    Node.objects.update(last_seen=timezone.now())
    page = words(client.get("/queue/").content)
    assert "Prompts Visitors who try a model. 1 running, 1 waiting" in page
    assert "Prompts" in client.get("/queue/live.json").json()["parts"]["background-jobs"]
    assert "Smeared keys, visitor prompt" in words(client.get("/nodes/").content)


def test_the_totals_count_what_was_lent_trained_and_judged(client: Client, arrived: Run) -> None:
    for address in ("/nodes/", "/queue/", "/about/"):
        page = words(client.get(address).content)
        assert "runs judged 1" in page, address
        assert "tokens trained on 10.2 k" in page, address


def test_every_page_leads_to_how_it_works_and_thanks_those_it_should(client: Client, track: Any, settings: Any) -> None:
    settings.CHAT_URL = "https://chat.example.org/train"
    settings.ACKNOWLEDGEMENTS = ["The Lab https://lab.example.org", "Ada Lovelace"]
    page = " ".join(client.get("/").content.decode().split())
    assert 'href="/about/"' in page
    assert '<a href="https://chat.example.org/train" rel="noopener">Chat</a>' in page
    assert '<a href="https://lab.example.org" rel="noopener">The Lab</a>, Ada Lovelace' in page
    settings.CHAT_URL = ""
    assert ">Chat<" not in client.get("/about/").content.decode()
