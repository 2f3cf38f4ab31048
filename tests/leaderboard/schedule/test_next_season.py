from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import runs
from leaderboard.models import Entry, Run, Season, SeasonFile, Track
from leaderboard.schedule import next_season
from leaderboard.submissions import intake
from scheduler import storage
from scheduler.models import Event, Node
from tests.leaderboard.conftest import Repository, finish_run
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
    suite = () if "--suite" in arguments else ("--suite", "blimp_sample")
    call_command("create_season", name, *arguments, *suite, stdout=out, verbosity=0)
    return out.getvalue()


def submit_main(main: Repository, track: Track) -> Entry:
    entry = intake.submit_entry(str(main.path), "main", "main", "gpt", track, kind=Entry.Kind.MAIN)
    intake.approve_entry(entry, entry.sha, None)
    return entry


def test_next_season_continues_tracks_and_starts_ladder_of_newest_main(
    track: Track, main_repository: Repository, corpus: str, node: Node
) -> None:
    first = track.season
    first.baseline, first.caps, track.ladder = (
        submit_main(main_repository, track),
        {"parameters": 5e6},
        {"rungs": [1], "seeds": 2},
    )
    first.save()
    track.save()
    main_repository.commit("Faster", {"trainer/models/gpt.py": "x = 1\n"})
    newest = submit_main(main_repository, track)
    trained = runs.make_run(newest, track)
    runs.queue_run(trained)
    finish_run(trained, node)
    main_repository.commit("Not trained yet", {"trainer/models/gpt.py": "x = 2\n"})
    submit_main(main_repository, track)
    first_season_runs = set(Run.objects.values_list("pk", "season"))
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
    assert set(Run.objects.filter(season=first).values_list("pk", "season")) == first_season_runs
    assert list(Run.objects.filter(season=second).values_list("entry", "purpose")) == [(newest.pk, "ladder")] * 2
    assert "0 tracks continue" in create_season("Season 1", *arguments)
    with pytest.raises(CommandError, match="There is another season 'Season 1'"):
        create_season("Season 1", "--corpus", corpus, "--tokenizer", "bpe:400")


def test_season_that_ended_is_refused_and_tracks_stay(track: Track, corpus: str) -> None:
    arguments = ["--corpus", corpus, "--tokenizer", "bpe:300"]
    create_season("Season 1", *arguments)
    create_season("Season 2", *arguments)
    Season.objects.filter(name="Season 2").update(started_at=datetime(2127, 2, 3, tzinfo=UTC))
    with pytest.raises(CommandError, match=r"^Season 1 ended on 3 Feb 2127; choose another name\.$"):
        create_season("Season 1", *arguments)
    track.refresh_from_db()
    assert track.season.name == "Season 2"


def test_season_stays_current_until_next_is_prepared(track: Track, corpus: str) -> None:
    unprepared = next_season.create_season("Season 1", corpus, "bpe:300", None)
    assert Season.objects.current() == track.season != unprepared


def test_begun_season_keeps_what_was_saved_while_it_was_prepared(track: Track, corpus: str) -> None:
    season = next_season.create_season("Season 1", corpus, "bpe:300", None)
    Season.objects.filter(pk=season.pk).update(name="Winter", caps={"parameters": 5e6})  # in the admin
    next_season.begin_season(season)
    season.refresh_from_db()
    assert (season.name, season.caps, season.active) == ("Winter", {"parameters": 5e6}, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "wikipedia"], "climbmix, dclm-baseline, files, finephrase, fineweb-edu"),
        (["--corpus", "fineweb-edu:sample-1T"], "known: fineweb-edu:sample-10BT, fineweb-edu:sample-100BT"),
        (["--corpus", "fineweb-edu", "--tokenizer", "bpe:12"], "between 257"),
        (["--corpus", "fineweb-edu", "--tokenizer", "words"], "expected bpe:8192, gpt2:FOLDER, world:FILE"),
        (["--corpus", "fineweb-edu", "--tokens", "many"], "try 500M or 12B"),
        (["--corpus", "fineweb-edu", "--suite", "mmlu"], "There is no task 'mmlu' in the suite; known: blimp, "),
    ],
)
def test_season_with_unknown_corpus_or_tokenizer_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        create_season("Season 1", *arguments)
    assert not Season.objects.exists()


def test_season_admin_with_unknown_corpus_or_tokenizer_shows_error(client: Client, maintainer: User) -> None:
    client.force_login(maintainer)
    values = {"name": "Season 1", "started_at_0": "2026-11-01", "started_at_1": "00:00", "caps": "{}"}
    values |= {"test_tokens": 1000}
    values |= {"corpus": "wikipedia", "tokenizer": "bpe:32768"}
    page = client.post("/admin/leaderboard/season/add/", values).content.decode()
    assert "it starts with one of climbmix, dclm-baseline" in page
    values |= {"corpus": "fineweb-edu:sample-100BT", "tokenizer": "bpe:12"}
    assert "it must be between 257" in client.post("/admin/leaderboard/season/add/", values).content.decode()
    assert not Season.objects.exists()
    client.post("/admin/leaderboard/season/add/", values | {"tokenizer": "bpe:32768"})
    assert Season.objects.get().corpus == "fineweb-edu:sample-100BT"


def test_season_added_in_admin_begins_by_its_name(track: Track, corpus: str, client: Client, maintainer: User) -> None:
    client.force_login(maintainer)
    values = {"name": "Season 1", "started_at_0": "2026-11-01", "started_at_1": "00:00", "caps": "{}", "active": "on"}
    values |= {"test_tokens": 1000, "corpus": corpus, "tokenizer": "bpe:300"}
    page = client.post("/admin/leaderboard/season/add/", values, follow=True).content.decode()
    assert "Season 1 is saved. Prepare it to begin it." in page
    assert "Prepare and begin" in page
    assert Season.objects.current() == track.season
    assert "1 tracks continue in it" in create_season("Season 1")
    track.refresh_from_db()
    assert track.season.name == "Season 1"
    with pytest.raises(CommandError, match="There is no season 'Season 2'"):
        create_season("Season 2")


def test_next_season_skips_tracks_with_other_tokenizer(track: Track, corpus: str) -> None:
    start = create_finished_run(track)
    Track.objects.filter(pk=track.pk).update(start_run=start)
    other_track = Track.objects.create(
        slug="other", name="Other", season=track.season, budget=track.budget, expected_seconds=10
    )
    Season.objects.create(
        name="Season 2", active=False, corpus=corpus, tokenizer="bpe:300", limit_bytes=None, caps={"parameters": 1e6}
    )
    printed = create_season("Season 2")
    assert "1 tracks continue in it" in printed
    assert f"{track.slug} stays in {track.season}: its first weights have another tokenizer." in printed
    track.refresh_from_db()
    other_track.refresh_from_db()
    assert (track.season.name, other_track.season.name) == (start.season.name, "Season 2")
    assert other_track.season.caps == {"parameters": 1e6}
    assert "have another tokenizer" in Event.objects.about(track).last().sentence


def test_invalid_track_stays_in_old_season_and_is_named(track: Track, corpus: str) -> None:
    Track.objects.filter(pk=track.pk).update(budget="forever", suite=["mmlu"])
    old_season = track.season
    printed = create_season("Season 2", "--corpus", corpus, "--tokenizer", "bpe:300")
    assert "0 tracks continue in it" in printed
    assert f"{track.slug} stays in {old_season}: " in printed
    assert "forever" in printed
    track.refresh_from_db()
    assert (track.season, Season.objects.current()) == (old_season, Season.objects.get(name="Season 2"))
    assert f"{track} stays in {old_season}: " in Event.objects.about(track).last().sentence


def test_tokenizers_of_seasons_are_compared_by_files(track: Track) -> None:
    first = track.season
    second = Season.objects.create(name="Season 2", active=False, corpus="files:x", tokenizer=first.tokenizer)
    assert first.shares_tokenizer(first)
    assert not first.shares_tokenizer(second), "no tokenizer files are stored"
    for season, content in ((first, b"one"), (second, b"two")):
        SeasonFile.objects.create(
            season=season, kind="dataset", path="tokenizer.json", blob=storage.store_bytes(content)
        )
    assert not first.shares_tokenizer(second)
    SeasonFile.objects.filter(season=second).update(blob=storage.store_bytes(b"one"))
    assert first.shares_tokenizer(second)
    Season.objects.filter(pk=second.pk).update(tokenizer="bpe:999")
    second.refresh_from_db()
    assert not first.shares_tokenizer(second)


def create_finished_run(track: Track) -> Run:
    return scene.create_run(scene.create_entry(track, "Earlier"), state=Run.State.FINISHED)


def test_test_tokens_of_season_with_scores_are_fixed(track: Track, main_repository: Repository, node: Node) -> None:
    season = track.season
    season.test_tokens = 4_000_000
    season.full_clean()
    season.save()
    assert track.to_dict()["test_tokens"] == 4_000_000
    scene.create_run(submit_main(main_repository, track), state=Run.State.FINISHED, bits_per_byte=1.0)
    season.full_clean()
    season.test_tokens = 2_000_000
    with pytest.raises(ValidationError, match="Create a new season"):
        season.full_clean()
