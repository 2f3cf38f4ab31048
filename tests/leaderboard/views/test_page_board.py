"""The board and its small JSON."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.schedule.start_estimates import estimate_starts
from scheduler.models import Event, Node
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def words(html: bytes) -> str:
    """The page as it reads, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.decode()).replace("\xa0", " "))


def test_a_site_without_tracks_says_what_will_be_here(client: Client) -> None:
    answer = client.get("/")

    assert answer.status_code == 200
    assert "make run" in words(answer.content)


def test_an_empty_track_says_how_to_fill_it(client: Client) -> None:
    scene.track()

    page = words(client.get("/").content)

    assert "No train is running" in page
    assert "Nothing has arrived on this track yet" in page
    assert "manage.py submit_entry" in page


def test_tonights_train_stands_on_top_with_its_node_its_pace_and_its_curve(client: Client) -> None:
    night = scene.night()

    answer = client.get("/")
    page = words(answer.content)

    assert "Tonight’s train running main" in page
    assert "on this-machine" in page
    assert "1 min 16 s" in page
    assert "left of 3 min" in page
    assert b'class="smooth" d="m' in answer.content
    assert f"/tracks/{night['track'].slug}/live.json" in answer.content.decode()


def test_a_train_that_still_boards_promises_nothing(client: Client) -> None:
    scene.running(scene.entry(scene.track(), "main"), 0)

    page = words(client.get("/").content)

    assert "boarding" in page
    assert "left of" not in page
    assert "The loss curve appears here with the first steps." in page


def test_the_best_is_first_and_numbers_carry_their_error(client: Client) -> None:
    scene.night()

    page = words(client.get("/").content)

    assert page.index("2.0412 ± 0.0071") < page.index("2.0688 ± 0.0074") < page.index("2.3127 ± 0.0093")


def test_what_waits_and_what_failed_have_their_reasons(client: Client) -> None:
    scene.night()

    page = words(client.get("/").content)

    assert "Waits for a node that fits. It trains about 3 min." in page
    assert "A maintainer has to approve commit beef1c7b first." in page
    assert "The loss became NaN at step 212." in page


@pytest.mark.stored_standings
def test_board_with_many_rows_takes_six_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    night = scene.night()
    for seed in range(20, 40):
        scene.scored(night["entry"], 2.1, 0.01, steps=2, seed=seed)
        scene.run(night["entry"], seed=100 + seed, state=Run.State.QUEUED)

    recompute_standings(night["entry"].track)

    with django_assert_max_num_queries(6):
        page = words(client.get("/").content)
    assert "main" in page
    assert "The loss became NaN at step 212." in page


def test_the_live_answer_changes_only_when_something_did(client: Client) -> None:
    night = scene.night()
    address = "/tracks/three-minutes/live.json"

    first = client.get(address)
    again = client.get(address, headers={"if-none-match": first["ETag"]})
    scene.points(night["train"], 521, 530)
    moved = client.get(address, headers={"if-none-match": first["ETag"]})

    assert first.status_code == 200
    assert "main" in first.json()["parts"]["train"]
    assert again.status_code == 304
    assert moved.status_code == 200
    assert moved.json()["revision"] == first.json()["revision"]


def test_a_change_of_state_asks_open_pages_to_load_anew(client: Client) -> None:
    night = scene.night()
    address = "/tracks/three-minutes/live.json"
    before = client.get(address).json()["revision"]

    Event.record("site", night["train"], "Training is over; it is being scored.")

    assert client.get(address).json()["revision"] > before


def test_a_node_without_a_sandbox_is_announced_on_every_page(client: Client) -> None:
    train = scene.night()["train"]
    assert "No sandbox" not in words(client.get("/").content)

    Node.objects.update(hardware={"sandboxes": ["none"]})

    for address in ("/", "/queue/", "/nodes/", train.get_absolute_url(), train.entry.get_absolute_url()):
        assert "No sandbox. this-machine runs" in words(client.get(address).content)


def test_a_row_has_its_multiplier_interval_scale_runs_and_what_would_settle_it(client: Client) -> None:
    boards.board()

    answer = client.get("/")
    page = words(answer.content)

    assert "Multiplier at 1.0 × 10¹³ FLOPs" in page, "gains shrink with scale: it stands beside every number"
    multiplier = r"1\.\d{3} ± \d\.\d % 95 % interval: [\d.]+ to [\d.]+"
    assert re.search(rf"Better smear by mira, 0{{8}} {multiplier} [\d.]+ ± 0\.0070 1\.57 M 1\.0 × 10¹³", page)
    assert re.search(rf"Level smear by mira, 0{{8}} {multiplier} level so far, \d+ more seeds?", page)
    assert "main, 3 March gpt, 5d0a1c7b , baseline" in page
    assert b'role="tooltip">worse than the baseline' not in answer.content, "the number says so"
    assert b'class="reach"' in answer.content


def test_rows_that_share_a_rank_are_drawn_as_a_group(client: Client) -> None:
    boards.board()

    page = client.get("/").content.decode()

    assert re.findall(r'<td class="rank">\s*(\d)', page) == ["1", "2", "2", "4"]
    assert len(re.findall(r"<tr\s+class=\"[^\"]*is-tied", page)) == 1


def test_the_time_axis_says_which_times_do_not_count(client: Client) -> None:
    _, entries = boards.board()
    Run.objects.filter(entry=entries["Worse"]).update(seconds_void="Its node ran at 83.1% of its usual speed.")

    page = words(client.get("/?axis=seconds").content)

    assert "time voided: Its node ran at 83.1% of its usual speed." in page
    assert "time voided" not in words(client.get("/?axis=anything").content)


def test_the_ladder_is_drawn_with_a_table_behind_it(client: Client) -> None:
    boards.board()

    answer = client.get("/")
    page = words(answer.content)

    assert answer.content.count(b'class="seed"') == 15
    assert answer.content.count(b"mark-entry") == 3
    assert re.search(r"1/8 1\.3 × 10¹² 3 2\.\d{4} ± 0\.\d{4} 2\.\d{4}", page)
    assert "results.json --baseline entry-" in page


def test_a_young_ladder_is_told_once_and_not_in_every_row(client: Client) -> None:
    track, baseline = boards.small()
    boards.judged(baseline, seed=5)
    boards.judged(scene.entry(track, "Smeared keys", "smear", sha="a" * 40))

    page = words(client.get("/").content)

    assert page.count("the baseline has runs at one compute only") == 1
    assert "The baseline’s ladder has 1 of 15 runs. It fills by itself while nodes are free" in page


def test_every_badge_is_explained_where_its_link_leads(client: Client) -> None:
    boards.board()

    page = client.get("/").content.decode()

    assert page.count('href="#badges"') == 4
    assert 'id="badges"' in page
    for trust in Run.Trust:
        assert html.escape(explanations.TRUST_MEANINGS[trust]) in page


@pytest.mark.stored_standings
def test_filtered_board_takes_one_more_query(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    track, entries = boards.board()
    for number in range(20):
        entry = scene.entry(track, f"Idea {number}", sha=f"{100 + number:040x}")
        boards.judged(entry, 1 + number / 100)
    scene.running(entries["baseline"], 5, purpose=Run.Purpose.LADDER, seed=77)
    recompute_standings(track)

    with django_assert_max_num_queries(6):
        assert "Idea 19" in words(client.get("/").content)
    with django_assert_max_num_queries(7):  # and the number of rows that match
        client.get("/?q=idea&sort=-bits&columns=bits,tokens")


def test_a_strangers_title_is_only_text(client: Client) -> None:
    track, _ = boards.board()
    boards.judged(scene.entry(track, '"><script>alert(1)</script>', sha="9" * 40))

    assert b"<script>alert" not in client.get("/").content


def test_an_unknown_address_is_refused_in_our_voice(client: Client) -> None:
    answer = client.get("/tracks/nowhere/")

    assert answer.status_code == 404
    assert "This train does not stop here" in words(answer.content)


def test_departures_are_estimated_in_the_order_of_the_queue() -> None:
    night = scene.night()
    now = timezone.now()
    waiting = list(Run.objects.queued().select_related("job"))

    one = estimate_starts(waiting, now)
    scene.node("another")
    two = estimate_starts(waiting, now)
    Node.objects.update(state=Node.State.OFFLINE)
    none = estimate_starts(waiting, now)

    left = timedelta(seconds=night["train"].seconds_left)
    assert [line.leaves_at for line in one] == [now + left, now + left + timedelta(seconds=180)]
    assert [line.arrives_at - line.leaves_at for line in one if line.arrives_at and line.leaves_at] == 2 * [
        timedelta(seconds=180)
    ]
    assert [line.leaves_at for line in two] == [now, now + left]
    assert [line.leaves_at for line in none] == [None, None]
    assert [line.position for line in none] == [1, 2]
    assert none[0].reason == "Waits for a node that fits: none is online. It starts as soon as one is."
