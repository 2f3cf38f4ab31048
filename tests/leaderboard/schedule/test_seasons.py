"""The first season of a site, and the seasons after it: created, prepared and begun."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import runs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import first_season, next_season
from leaderboard.submissions import intake
from scheduler import storage
from scheduler.models import Blob, Event, Job, Node
from tests.leaderboard.conftest import DICTIONARY, Repository, finish_run
from tests.support import scene
from tests.support.graph_jobs import finish_trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def architectures_on_main(main_repository: Repository, site: Any) -> None:
    """Commit the architectures that a new site trains to main."""
    more = ("litgpt", "nanogpt")
    text = DICTIONARY.replace("}", "".join(f'    "{name}": "trainer.models.{name}",\n' for name in more) + "}")
    files: dict[str, str | bytes] = {f"trainer/models/{name}.py": "x = 1\n" for name in more}
    main_repository.commit("More models", {"trainer/models/__init__.py": text, **files})


@pytest.fixture
def own_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a first season of a few sentences, with its own cache."""
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"The train number {i} leaves at {i} o'clock, whatever the weather. " * 20)
    small = {"corpus": f"files:{tmp_path}/*.txt", "tokenizer": "bpe:300", "limit_bytes": None}
    monkeypatch.setattr(first_season, "SEASON", small)
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run_command(command: str, *arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, **options)
    return out.getvalue()


def trace_waiting_runs() -> None:
    for run in Run.objects.filter(state="waiting").order_by("pk"):
        finish_trace(run, vocabulary_size=300)


def test_bootstrap_site_creates_entries_and_runs_once(architectures_on_main: None, main_repository: Repository) -> None:
    for _ in range(2):
        assert run_command("bootstrap_site") == "Half a minute on two cores: 4 runs waiting\n"
    assert [(entry.architecture, entry.kind, entry.state) for entry in Entry.objects.order_by("pk")] == [
        ("gpt", "main", "approved"),
        ("smear", "architecture", "approved"),
        ("litgpt", "architecture", "approved"),
        ("nanogpt", "architecture", "approved"),
    ]
    season = Season.objects.get()
    assert season.baseline == Entry.objects.get(kind="main")
    assert {run.reason for run in Run.objects.all()} == {"Approved; waits until the season's dataset is prepared."}
    chain = Track.objects.get(slug="small").list_earlier()
    assert [track.slug for track in chain] == ["seconds"]
    for track in Track.objects.all():
        track.full_clean()
    main_repository.commit("main goes on")
    run_command("bootstrap_site")
    assert Run.objects.count() == 4


def test_other_architectures_wait_until_the_first_run_is_over(architectures_on_main: None) -> None:
    run_command("bootstrap_site", main_only=True)
    assert not first_season.enter_after_first_run()
    Run.objects.update(state=Run.State.FINISHED)
    Season.objects.update(name="Season 1")
    assert first_season.enter_after_first_run()
    assert Entry.objects.get().kind == "main", "a later season"
    Season.objects.update(name=first_season.SEASON_NAME)
    for _ in range(2):
        assert first_season.enter_after_first_run()
        assert Entry.objects.count() == 4


def test_bootstrap_site_with_superuser_creates_administrator(architectures_on_main: None) -> None:
    run_command("bootstrap_site")
    assert not User.objects.exists()
    _, _, password = run_command("bootstrap_site", superuser="mara").splitlines()[-1].partition("password ")
    assert User.objects.get(username="mara", is_superuser=True).check_password(password.split()[0])
    assert "exists already" in run_command("bootstrap_site", superuser="mara")


def test_prepare_season_pins_dataset_and_queues_waiting_runs(architectures_on_main: None, own_corpus: Path) -> None:
    run_command("bootstrap_site")
    assert not Job.objects.exists()
    run_command("prepare_season", verbosity=0)
    season = Season.objects.get()
    assert len(season.dataset_hash) == 64
    assert season.vocabulary_size == 300
    assert {(job.kind, job.traced_graph.season) for job in Job.objects.all()} == {("smoke", season)}
    trace_waiting_runs()
    queued = [run.entry.architecture for run in Run.objects.queued()]
    assert queued == ["gpt", "smear", "litgpt", "nanogpt"]
    assert Job.objects.count() == 8
    run_command("prepare_season", verbosity=0)
    assert Job.objects.count() == 8

    season.files.all().delete()
    (own_corpus / "another.txt").write_text("A text that was not there before. " * 20)
    with pytest.raises(CommandError, match=f"is pinned to {season.dataset_hash[:12]}"):
        run_command("prepare_season", verbosity=0)


def test_prepared_files_are_stored_once_with_splits_per_job(architectures_on_main: None, own_corpus: Path) -> None:
    run_command("bootstrap_site")
    run_command("prepare_season", verbosity=0)
    season = Season.objects.get()
    training = {"manifest.json", "tokenizer.json", "train/00000.bin", "dev/00000.bin"}
    assert {file.path for file in season.dataset("train", "dev").files or ()} == training
    scoring = {file.path: file for file in season.dataset("test").files or ()}
    assert set(scoring) == {"manifest.json", "tokenizer.json", "test/documents.jsonl"}
    blob = Blob.objects.get(pk=scoring["test/documents.jsonl"].sha256)
    assert storage.read_blob(blob).count(b"\n") > 0
    assert not storage.delete_unreferenced_blob(blob.sha256)
    season.files.filter(path="train/00000.bin").delete()
    season.files.filter(path="manifest.json").delete()
    assert season.dataset("test").files is None, "a part of the dataset is stored"
    run_command("prepare_season", verbosity=0)
    (own_corpus / "another.txt").write_text("Stored files do not change with the corpus. " * 20)
    run_command("prepare_season", verbosity=0)
    assert season.dataset("test").files == tuple(scoring.values())


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
    track: Track, main_repository: Repository, prepared_corpus: str, node: Node
) -> None:
    first = track.season
    first.baseline, first.caps = submit_main(main_repository, track), {"parameters": 5e6}
    track.ladder = {"rungs": [1], "seeds": 2}
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
    arguments = ["--corpus", prepared_corpus, "--tokenizer", "bpe:300", "--tokens", "1M"]
    assert "1 tracks continue in it; 2 runs" in create_season("Season 1", *arguments)
    track.refresh_from_db()
    second = track.season
    values = (second.name, second.baseline, second.caps, second.limit_bytes)
    assert values == ("Season 1", newest, first.caps, 5_500_000)
    assert Season.objects.current() == second
    assert second.dataset("train").files
    assert set(Run.objects.filter(season=first).values_list("pk", "season")) == first_season_runs
    assert list(Run.objects.filter(season=second).values_list("entry", "purpose")) == [(newest.pk, "ladder")] * 2
    assert "0 tracks continue" in create_season("Season 1", *arguments)
    with pytest.raises(CommandError, match="There is another season 'Season 1'"):
        create_season("Season 1", "--corpus", prepared_corpus, "--tokenizer", "bpe:400")


def test_begun_season_keeps_what_was_saved_while_it_was_prepared(track: Track, prepared_corpus: str) -> None:
    season = next_season.create_season("Season 1", prepared_corpus, "bpe:300", None)
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


def test_season_added_in_admin_begins_by_its_name(
    track: Track, prepared_corpus: str, client: Client, maintainer: User
) -> None:
    client.force_login(maintainer)
    values = {"name": "Season 1", "started_at_0": "2026-11-01", "started_at_1": "00:00", "caps": "{}", "active": "on"}
    values |= {"test_tokens": 1000, "corpus": prepared_corpus, "tokenizer": "bpe:300"}
    page = client.post("/admin/leaderboard/season/add/", values, follow=True).content.decode()
    assert "Prepare and begin it: manage.py create_season &#x27;Season 1&#x27;" in page
    assert Season.objects.current() == track.season
    assert "1 tracks continue in it" in create_season("Season 1")
    track.refresh_from_db()
    assert track.season.name == "Season 1"
    with pytest.raises(CommandError, match="There is no season 'Season 2'"):
        create_season("Season 2")


def test_next_season_skips_invalid_tracks_and_those_with_other_tokenizer(track: Track, prepared_corpus: str) -> None:
    start = scene.create_run(scene.create_entry(track, "Earlier"), state=Run.State.FINISHED)
    Track.objects.filter(pk=track.pk).update(start_run=start)
    fields = {"season": track.season, "budget": track.budget, "expected_seconds": 10}
    other_track = Track.objects.create(slug="other", name="Other", **fields)
    invalid = Track.objects.create(slug="odd", name="Odd", **{**fields, "budget": "forever"})
    fields = {"corpus": prepared_corpus, "tokenizer": "bpe:300", "limit_bytes": None, "caps": {"parameters": 1e6}}
    Season.objects.create(name="Season 2", active=False, **fields)
    printed = create_season("Season 2")
    assert "1 tracks continue in it" in printed
    assert f"{track.slug} stays in {track.season}: its first weights have another tokenizer." in printed
    assert f"odd stays in {track.season}: " in printed
    assert f"{invalid} stays in {track.season}: " in Event.objects.about(invalid).last().sentence
    track.refresh_from_db()
    other_track.refresh_from_db()
    assert (track.season.name, other_track.season.name) == (start.season.name, "Season 2")
    assert other_track.season.caps == {"parameters": 1e6}
    assert "have another tokenizer" in Event.objects.about(track).last().sentence


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
