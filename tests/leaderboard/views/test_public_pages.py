"""The pages of the queue, the nodes, the hypotheses and visitors' prompts."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Entry, Generation, Run, Standing, StandingsTable
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.leaderboard.conftest import finish_run
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import scene
from tests.support.node_jobs import finish_job, lease_job

pytestmark = pytest.mark.django_db


def test_queue_page_lists_running_then_waiting_then_finished(client: Client) -> None:
    scene.create_night_board()

    page = extract_text(client.get("/queue/").content)

    assert page.index("1 min 16 s left of 3 min") < page.index("being prepared") < page.index("Arrivals")
    assert page.index("Arrivals") < page.index("Did not arrive") < page.index("The loss became NaN")
    arrivals = page[page.index("Arrivals") : page.index("Did not arrive")]
    assert all(f"seed {run.seed}" in arrivals for run in Run.objects.filter(state="finished")), arrivals


def test_nodes_page_shows_hardware_and_activity(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    scene.create_night_board()
    for number in range(10):
        scene.create_node(f"lent-{number}")
    Node.objects.create(name="troublemaker", state=Node.State.BANNED)

    with django_assert_max_num_queries(10):
        page = extract_text(client.get("/nodes/").content)

    assert "8 cores, 16 GiB" in page
    assert "Trains main , since" in page
    assert "Free. It takes the next job that fits." in page
    assert "troublemaker" not in page
    assert "main" in client.get("/nodes/live.json").json()["parts"]["nodes"]


@pytest.mark.stored_standings
@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.05, 1.2, "Better than the baseline"),
        (0.8, 0.95, "Worse than the baseline"),
        (0.95, 1.1, "No difference found"),
        (None, None, "Not compared"),
    ],
)
def test_scored_hypothesis_has_the_verdict_of_its_interval(
    run: Run, client: Client, low: float | None, high: float | None, verdict: str
) -> None:
    Entry.objects.filter(pk=run.entry_id).update(hypothesis="Keys see one token back.")
    table = StandingsTable.objects.get_or_create(track=run.track, axis="flops")[0]
    middle = None if low is None or high is None else (low + high) / 2
    assert "No hypothesis has a verdict yet." in client.get("/learned/").content.decode()
    interval = {"multiplier": middle, "multiplier_low": low, "multiplier_high": high}
    fields = {"position": 0, "trust": "scored", "bits_per_byte": 1.2, "search_text": "", **interval}
    Standing.objects.create(table=table, entry=run.entry, latest_run=run, **fields)
    page = client.get("/learned/").content.decode()
    assert "Keys see one token back." in page
    assert f"<td>{verdict}</td>" in page


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
