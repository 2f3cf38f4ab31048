"""The board and its small JSON."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run, Track
from leaderboard.rankings import explanations
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.schedule.start_estimates import estimate_starts
from leaderboard.schedule.track_templates import TEMPLATES
from leaderboard.views import board
from scheduler.models import Event, Node
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def extract_text(html: bytes) -> str:
    """Return the text of a page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.decode()).replace("\xa0", " "))


def test_board_of_site_without_tracks_explains_setup(client: Client) -> None:
    response = client.get("/")

    assert response.status_code == 200
    assert "make run" in extract_text(response.content)


def test_board_of_empty_track_explains_submission(client: Client) -> None:
    scene.create_track()

    page = extract_text(client.get("/").content)

    assert "No train is running" in page
    assert "This track has no results yet" in page
    assert "manage.py submit_entry" in page


def test_board_shows_nightly_run_with_node_progress_and_curve(client: Client) -> None:
    night = scene.create_night_board()

    response = client.get("/")
    page = extract_text(response.content)

    assert "Tonight’s train running main" in page
    assert "on this-machine" in page
    assert "1 min 16 s" in page
    assert "left of 3 min" in page
    assert b'class="smooth" d="m' in response.content
    assert f"/tracks/{night['track'].slug}/live.json" in response.content.decode()


def test_board_of_run_without_steps_shows_no_time_left(client: Client) -> None:
    scene.create_training_run(scene.create_entry(scene.create_track(), "main"), 0)

    page = extract_text(client.get("/").content)

    assert "boarding" in page
    assert "left of" not in page
    assert "The loss curve appears here with the first steps." in page


def test_board_rows_are_sorted_by_score_with_errors(client: Client) -> None:
    scene.create_night_board()

    page = extract_text(client.get("/").content)

    assert page.index("2.0412 ± 0.0071") < page.index("2.0688 ± 0.0074") < page.index("2.3127 ± 0.0093")


def test_board_shows_reasons_of_waiting_and_failed_runs(client: Client) -> None:
    scene.create_night_board()

    page = extract_text(client.get("/").content)

    assert "Waits for a node that fits." in page
    assert "It trains about" not in page, "the queue's page estimates that from measured speeds"
    assert "A maintainer has to approve commit beef1c7b first." in page
    assert "The loss became NaN at step 212." in page


@pytest.mark.stored_standings
def test_board_with_many_rows_takes_ten_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    night = scene.create_night_board()
    for seed in range(20, 40):
        scene.create_scored_run(night["entry"], 2.1, 0.01, steps=2, seed=seed)
        scene.create_run(night["entry"], seed=100 + seed, state=Run.State.QUEUED)

    recompute_standings(night["entry"].track)

    with django_assert_max_num_queries(10):
        page = extract_text(client.get("/").content)
    assert "main" in page
    assert "The loss became NaN at step 212." in page


def test_board_shows_the_run_that_runs_before_a_paused_night(client: Client) -> None:
    track = scene.create_track()
    scene.create_training_run(scene.create_entry(track, "Paused"), 5, purpose="nightly", state=Run.State.PAUSED)
    running = scene.create_training_run(scene.create_entry(track, "Moving", "smear"), 5)

    page = client.get("/").content.decode()
    live = client.get(f"/tracks/{track.slug}/live.json").json()

    assert board.filter_shown_run(track.slug).get() == running
    assert page.index("Moving") < page.index("Paused")
    assert "Moving" in str(live)


def test_board_counts_the_live_runs_that_it_does_not_list(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "BOARD_LIVE_RUNS", 2)
    Run.objects.bulk_create(
        Run(entry=run.entry, track=run.track, season=run.season, budget=run.budget, seed=seed, state="training")
        for seed in (101, 102)
    )

    assert "live. When each run starts" not in extract_text(client.get("/").content)
    Run.objects.filter(pk=run.pk).update(state=Run.State.TRAINING)
    assert "1 more run is live. When each run starts" in extract_text(client.get("/").content)


def test_board_live_json_is_304_until_a_change(client: Client) -> None:
    night = scene.create_night_board()
    address = "/tracks/three-minutes/live.json"

    first = client.get(address)
    unchanged = client.get(address, headers={"if-none-match": first["ETag"]})
    scene.add_curve_points(night["train"], 521, 530)
    changed = client.get(address, headers={"if-none-match": first["ETag"]})

    assert first.status_code == 200
    assert "main" in first.json()["parts"]["train"]
    assert unchanged.status_code == 304
    assert changed.status_code == 200
    assert changed.json()["revision"] == first.json()["revision"]


def test_board_live_json_revision_increases_after_state_change(client: Client) -> None:
    night = scene.create_night_board()
    address = "/tracks/three-minutes/live.json"
    revision = client.get(address).json()["revision"]

    Event.record("site", night["train"], "Training is over; it is being scored.")

    assert client.get(address).json()["revision"] > revision


def test_node_without_sandbox_is_announced_on_each_page(client: Client) -> None:
    train = scene.create_night_board()["train"]
    assert "No sandbox" not in extract_text(client.get("/").content)

    Node.objects.update(hardware={"sandboxes": ["none"]})

    for address in ("/", "/queue/", "/nodes/", train.get_absolute_url(), train.entry.get_absolute_url()):
        assert "No sandbox. this-machine runs" in extract_text(client.get(address).content)


def test_board_row_has_multiplier_interval_and_seeds_needed(client: Client) -> None:
    boards.create_board()

    response = client.get("/")
    page = extract_text(response.content)

    assert "Multiplier at 1.0 × 10¹³ FLOPs" in page, "the column must name the scale of the multiplier"
    multiplier = r"1\.\d{3} ± \d\.\d % 95 % interval: [\d.]+ to [\d.]+"
    assert re.search(rf"Better smear by mira, 0{{8}} {multiplier} [\d.]+ ± 0\.0070 1\.57 M 1\.0 × 10¹³", page)
    assert re.search(rf"Level smear by mira, 0{{8}} {multiplier} level so far, \d+ more seeds?", page)
    assert "main, 3 March gpt, 5d0a1c7b , baseline" in page
    assert b'role="tooltip">worse than the baseline' not in response.content, "a clear multiplier needs no tooltip"
    assert b'class="reach"' in response.content


def test_board_rows_with_same_rank_are_grouped(client: Client) -> None:
    boards.create_board()

    page = client.get("/").content.decode()

    assert re.findall(r'<td class="rank">\s*(\d)', page) == ["1", "2", "2", "4"]
    assert len(re.findall(r"<tr\s+class=\"[^\"]*is-tied", page)) == 1


def test_board_time_axis_shows_void_seconds(client: Client) -> None:
    _, entries = boards.create_board()
    Run.objects.filter(entry=entries["Worse"]).update(seconds_void="Its node ran at 83.1% of its usual speed.")

    page = extract_text(client.get("/?axis=seconds").content)

    assert "time voided: Its node ran at 83.1% of its usual speed." in page
    assert "time voided" not in extract_text(client.get("/?axis=anything").content)


def test_board_ladder_chart_has_marks_and_table(client: Client) -> None:
    boards.create_board()

    response = client.get("/")
    page = extract_text(response.content)

    assert response.content.count(b'class="seed"') == 15
    assert response.content.count(b"mark-entry") == 3
    assert re.search(r"1/8 1\.3 × 10¹² 3 2\.\d{4} ± 0\.\d{4} 2\.\d{4}", page)
    assert "results.json --baseline entry-" in page


def test_board_with_incomplete_ladder_explains_it_once(client: Client) -> None:
    track, baseline = boards.create_ladder_track()
    boards.create_scored_run(baseline, seed=5)
    boards.create_scored_run(scene.create_entry(track, "Smeared keys", "smear", sha="a" * 40))

    page = extract_text(client.get("/").content)

    assert page.count("the baseline has runs at one compute only") == 1
    assert "The baseline’s ladder has 1 of 15 runs. It fills by itself while nodes are free" in page


def test_board_explains_each_trust_badge(client: Client) -> None:
    boards.create_board()

    page = client.get("/").content.decode()

    assert page.count('href="#badges"') == 4
    assert 'id="badges"' in page
    for trust in Run.Trust:
        assert html.escape(explanations.TRUST_MEANINGS[trust]) in page


@pytest.mark.stored_standings
def test_filtered_board_takes_one_more_query(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    track, entries = boards.create_board()
    for number in range(20):
        entry = scene.create_entry(track, f"Idea {number}", sha=f"{100 + number:040x}")
        boards.create_scored_run(entry, 1 + number / 100)
    scene.create_training_run(entries["baseline"], 5, purpose=Run.Purpose.LADDER, seed=77)
    recompute_standings(track)

    with django_assert_max_num_queries(9):
        assert "Idea 19" in extract_text(client.get("/").content)
    with django_assert_max_num_queries(10):  # and the number of rows that match
        client.get("/?q=idea&sort=-bits&columns=bits,tokens")


def test_board_escapes_titles(client: Client) -> None:
    track, _ = boards.create_board()
    boards.create_scored_run(scene.create_entry(track, '"><script>alert(1)</script>', sha="9" * 40))

    assert b"<script>alert" not in client.get("/").content


def test_unknown_track_is_not_found(client: Client) -> None:
    response = client.get("/tracks/nowhere/")

    assert response.status_code == 404
    assert "This train does not stop here" in extract_text(response.content)


def test_start_estimates_follow_queue_order_and_nodes() -> None:
    night = scene.create_night_board()
    now = timezone.now()
    waiting = list(Run.objects.queued().select_related("job"))

    one_node = estimate_starts(waiting, now)
    scene.create_node("another")
    two_nodes = estimate_starts(waiting, now)
    Node.objects.update(state=Node.State.OFFLINE)
    no_nodes = estimate_starts(waiting, now)

    time_left = timedelta(seconds=night["train"].seconds_left)
    assert [estimate.begins_at for estimate in one_node] == [now + time_left, now + time_left + timedelta(seconds=180)]
    assert [
        estimate.ends_at - estimate.begins_at for estimate in one_node if estimate.ends_at and estimate.begins_at
    ] == 2 * [timedelta(seconds=180)]
    assert [estimate.begins_at for estimate in two_nodes] == [now, now + time_left]
    assert [estimate.begins_at for estimate in no_nodes] == [None, None]
    assert [estimate.position for estimate in no_nodes] == [1, 2]
    assert no_nodes[0].reason == "Waits for a node that fits: none is online. It starts as soon as one is."


def test_board_without_a_scorer_that_fits_names_what_is_missing(client: Client, track: Track) -> None:
    node = Node.objects.create(name="scorer", trusted=True, state=Node.State.ONLINE, hardware={"memory_bytes": 2**34})
    Track.objects.update(needs_labels=["1xh100", "1x80gb"], config=TEMPLATES["night-h100"]["config"])
    track = Track.objects.get()
    message = f"They wait for a node with a GPU of {track.get_scoring_memory() / 1e9:.0f} GB"
    assert message in extract_text(client.get("/").content)
    gpu = {"name": "RTX 4060 Ti", "memory_bytes": 16 * 10**9, "uuid": "a"}
    node.hardware |= {"gpus": ["RTX 4060 Ti"], "gpu_details": [gpu], "memory_bytes": 2**36, "disk_free_bytes": 10**12}
    node.save()
    assert "cannot be scored" not in extract_text(client.get("/").content), "inference fits a smaller GPU than training"
    node.trusted = False
    node.save()
    assert message in extract_text(client.get("/").content)
