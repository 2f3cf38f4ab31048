from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import next_season
from leaderboard.submissions import intake
from scheduler.models import Node
from tests.leaderboard.conftest import Repository, finish
from tests.support import scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"Platform {number} is closed on day {number}. " * 30)
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return f"files:{tmp_path}/*.txt"


def create_season(name: str, *arguments: str) -> str:
    out = StringIO()
    call_command("create_season", name, *arguments, stdout=out, verbosity=0)
    return out.getvalue()


def enter_main(main: Repository, track: Track) -> Entry:
    entry = intake.submit_entry(str(main.path), "main", "main", "gpt", track, kind=Entry.Kind.MAIN)
    intake.approve_entry(entry, entry.sha, None)
    return entry


def test_next_season_takes_over_tracks_and_starts_ladder_of_newest_scored_main(
    track: Track, main: Repository, corpus: str, node: Node
) -> None:
    first = track.season
    first.baseline, first.caps, track.ladder = enter_main(main, track), {"parameters": 5e6}, {"rungs": [1], "seeds": 2}
    first.save()
    track.save()
    main.commit("Faster", {"trainer/models/gpt.py": "x = 1\n"})
    newest = enter_main(main, track)
    finish(scene.run(newest, state=Run.State.QUEUED), node)
    main.commit("Not trained yet", {"trainer/models/gpt.py": "x = 2\n"})
    enter_main(main, track)
    before = set(Run.objects.values_list("pk", "season"))
    arguments = ["--corpus", corpus, "--tokenizer", "bpe:300", "--tokens", "1M"]
    assert "1 tracks continue in it; 2 runs" in create_season("Season 1", *arguments)
    track.refresh_from_db()
    second = track.season
    assert (second.name, second.baseline, second.caps, second.limit_bytes) == (
        "Season 1",
        newest,
        first.caps,
        5_500_000,
    )
    assert Season.objects.current() == second
    assert second.dataset("train").files
    assert set(Run.objects.filter(season=first).values_list("pk", "season")) == before
    assert list(Run.objects.filter(season=second).values_list("entry", "purpose")) == [(newest.pk, "ladder")] * 2
    assert "0 tracks continue" in create_season("Season 1", *arguments)
    with pytest.raises(CommandError, match="There is another season named 'Season 1'"):
        create_season("Season 1", "--corpus", corpus, "--tokenizer", "bpe:400")


def test_season_that_is_over_is_refused_and_tracks_stay_in_the_current_one(track: Track, corpus: str) -> None:
    arguments = ["--corpus", corpus, "--tokenizer", "bpe:300"]
    create_season("Season 1", *arguments)
    create_season("Season 2", *arguments)
    Season.objects.filter(name="Season 2").update(started_at=datetime(2027, 2, 3, tzinfo=UTC))
    with pytest.raises(CommandError, match=r"^Season 1 ended on 3 Feb 2027; choose another name\.$"):
        create_season("Season 1", *arguments)
    track.refresh_from_db()
    assert track.season.name == "Season 2"


def test_season_stays_the_current_one_until_the_next_is_prepared(track: Track, corpus: str) -> None:
    waiting = next_season.create_season("Season 1", corpus, "bpe:300", None)
    assert Season.objects.current() == track.season != waiting


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "wikipedia"], "climbmix, dclm-baseline, files, finephrase, fineweb-edu"),
        (["--corpus", "fineweb-edu:sample-1T"], "known: fineweb-edu:sample-10BT, fineweb-edu:sample-100BT"),
        (["--corpus", "fineweb-edu", "--tokenizer", "bpe:12"], "between 257"),
        (["--corpus", "fineweb-edu", "--tokenizer", "words"], "expected bpe:8192, gpt2:FOLDER, world:FILE"),
        (["--corpus", "fineweb-edu", "--tokens", "many"], "try 500M or 12B"),
    ],
)
def test_unknown_corpus_tokenizer_or_size_is_refused_with_those_that_exist(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        create_season("Season 1", *arguments)
    assert not Season.objects.exists()


def test_admin_refuses_unknown_corpus_and_tokenizer(client: Client, maintainer: User) -> None:
    client.force_login(maintainer)
    values = {"name": "Season 1", "started_at_0": "2026-11-01", "started_at_1": "00:00", "caps": "{}"}
    values |= {"corpus": "wikipedia", "tokenizer": "bpe:32768"}
    page = client.post("/admin/leaderboard/season/add/", values).content.decode()
    assert "it starts with one of climbmix, dclm-baseline" in page
    values |= {"corpus": "fineweb-edu:sample-100BT", "tokenizer": "bpe:12"}
    assert "it must be between 257" in client.post("/admin/leaderboard/season/add/", values).content.decode()
    assert not Season.objects.exists()
    client.post("/admin/leaderboard/season/add/", values | {"tokenizer": "bpe:32768"})
    assert Season.objects.get().corpus == "fineweb-edu:sample-100BT"
