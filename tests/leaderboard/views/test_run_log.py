"""A run's log: its end, what is looked for in it, and all of it."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client

from leaderboard import run_logs
from leaderboard.models import Run
from scheduler import rate_limits
from scheduler.models import LogChunk
from tests.support import scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    """A run whose log came in pieces that begin and end within lines."""
    made = scene.running(scene.entry(scene.track(), "main"), 5)
    lease = scene.lease(made, scene.node())
    text = "".join(f"step {step} loss {9 - step / 100}\n" for step in range(1, 601)) + "Gradient norm is NaN\nthe end"
    for offset in range(0, len(text), 1000):
        LogChunk.objects.create(lease=lease, offset=offset, text=text[offset : offset + 1000])
    return made


def test_its_last_lines_are_whole(run: Run) -> None:
    shown = run_logs.get_log(run).text.splitlines()

    assert len(shown) == run_logs.SHOWN_LINES
    assert shown[-2:] == ["Gradient norm is NaN", "the end"]
    assert all(line.startswith("step ") for line in shown[:-2])


def test_words_are_found_in_all_of_it_with_their_line(run: Run) -> None:
    (found,) = run_logs.get_log(run, "norm IS nan").found

    assert (found.number, found.before, found.words, found.after) == (601, "Gradient ", "norm is NaN", "")
    first, *_ = run_logs.get_log(run, "step 1").found
    assert first.number == 1


def test_of_many_lines_the_last_are_shown_and_all_are_counted(run: Run) -> None:
    log = run_logs.get_log(run, "loss")

    assert (log.count, len(log.found), log.found[-1].number) == (600, run_logs.SHOWN_LINES, 600)


def test_what_is_looked_for_is_no_pattern_and_no_markup(client: Client, run: Run) -> None:
    page = client.get(f"{run.get_absolute_url()}?find=<b>.*").content.decode()

    assert "No line has “&lt;b&gt;.*”" in page
    assert "<b>.*" not in page


def test_the_page_works_without_script_and_the_live_part_says_the_same(client: Client, run: Run) -> None:
    page = client.get(f"{run.get_absolute_url()}?find=NaN").content.decode()
    live = client.get(f"/runs/{run.pk}/live.json?find=NaN").json()["parts"]["log"]

    for text in (page, live):
        assert "<mark>NaN</mark>" in text
        assert "1 line with" in text
    assert f"/runs/{run.pk}/live.json?find=NaN" in page


def test_all_of_it_is_a_text_file(client: Client, run: Run) -> None:
    answer = client.get(f"/runs/{run.pk}/log.txt")

    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["Content-Disposition"] == f'attachment; filename="run-{run.pk}-log.txt"'
    assert answer.content.decode().count("\n") == 602
    assert client.get("/runs/999999/log.txt").status_code == 404


def test_a_line_that_was_written_over_is_read_as_the_terminal_shows_it() -> None:
    assert list(run_logs.iterate_lines(["10 %\r20", " %\r\x1b[31m30 %\x1b[0m\r\nnext\x07\r", "\n"])) == ["30 %", "next"]


def test_a_run_that_never_ran_has_an_empty_log(client: Client) -> None:
    made = scene.run(scene.entry(scene.track(), "main"), state=Run.State.WAITING)

    assert run_logs.get_log(made, "x") == run_logs.Log(words="x")
    assert client.get(f"/runs/{made.pk}/log.txt").content == b""


def test_whole_logs_are_not_for_one_address_to_read_all_the_time(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "log", 2)
    cache.clear()

    answers = [client.get(f"/runs/{run.pk}/{what}") for what in ("log.txt", "?find=NaN", "live.json?find=N", "log.txt")]

    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert b"Too many requests from this IP address. Try again in" in answers[-1].content
    assert client.get(f"/runs/{run.pk}/").status_code == 200
