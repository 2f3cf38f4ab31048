from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import first_season
from leaderboard.tasks import fill_ladders
from scheduler import storage
from scheduler.models import Blob, Job
from tests.leaderboard.conftest import DICTIONARY, Repository
from tests.support.graph_jobs import finish_trace

pytestmark = pytest.mark.django_db


@pytest.fixture
def dictionary(main: Repository, site: Any) -> None:
    """main has the architectures that a new site trains."""
    more = ("litgpt", "nanogpt")
    text = DICTIONARY.replace("}", "".join(f'    "{name}": "trainer.models.{name}",\n' for name in more) + "}")
    files: dict[str, str | bytes] = {f"trainer/models/{name}.py": "x = 1\n" for name in more}
    main.commit("More models", {"trainer/models/__init__.py": text, **files})


@pytest.fixture
def small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A first season over a few sentences, and a cache of its own."""
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"The train number {i} leaves at {i} o'clock, whatever the weather. " * 20)
    small = {"corpus": f"files:{tmp_path}/*.txt", "tokenizer": "bpe:300", "limit_bytes": None}
    monkeypatch.setattr(first_season, "SEASON", small)
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def say(command: str, *arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, **options)
    return out.getvalue()


def trace_waiting_runs() -> None:
    for run in Run.objects.filter(state="waiting").order_by("pk"):
        finish_trace(run, vocabulary_size=300)


def test_a_new_site_departs_and_departs_once(dictionary: None, main: Repository) -> None:
    for _ in range(2):
        assert say("bootstrap_site") == "Ten teraFLOPs on two cores: 4 runs waiting\n"
    assert [(entry.architecture, entry.kind, entry.state) for entry in Entry.objects.order_by("pk")] == [
        ("gpt", "main", "approved"),
        ("smear", "architecture", "approved"),
        ("litgpt", "architecture", "approved"),
        ("nanogpt", "architecture", "approved"),
    ]
    season = Season.objects.get()
    assert season.baseline == Entry.objects.get(kind="main")
    assert {run.reason for run in Run.objects.all()} == {"Approved; waits until the season's dataset is prepared."}
    main.commit("main goes on")
    say("bootstrap_site")
    assert Run.objects.count() == 4


def test_with_main_only_no_other_code_is_entered(dictionary: None) -> None:
    say("bootstrap_site", main_only=True)
    assert Entry.objects.get().kind == "main"
    say("bootstrap_site")
    assert Entry.objects.count() == 4


def test_an_administrator_is_made_only_when_asked_for(dictionary: None) -> None:
    say("bootstrap_site")
    assert not User.objects.exists()
    words = say("bootstrap_site", superuser="mara").splitlines()[-1].split()
    assert User.objects.get(username="mara", is_superuser=True).check_password(words[words.index("password") + 1])
    assert "exists already" in say("bootstrap_site", superuser="mara")


def test_without_a_repository_setup_says_why(site: Any, tmp_path: Path) -> None:
    site.MAIN_REPOSITORY = str(tmp_path / "nowhere")
    with pytest.raises(CommandError, match="There is no repository at"):
        say("bootstrap_site")


def test_the_dataset_is_prepared_pinned_and_what_waited_is_queued(dictionary: None, small_corpus: Path) -> None:
    say("bootstrap_site")
    assert not Job.objects.exists()
    say("prepare_season", verbosity=0)
    season = Season.objects.get()
    assert len(season.dataset_hash) == 64
    assert season.vocabulary_size == 300
    assert {(job.kind, job.traced_graph.season) for job in Job.objects.all()} == {("smoke", season)}
    trace_waiting_runs()
    queued = [run.entry.architecture for run in Run.objects.queued()]
    assert queued == ["gpt", "smear", "litgpt", "nanogpt"]
    assert Job.objects.count() == 8
    say("prepare_season", verbosity=0)
    assert Job.objects.count() == 8

    season.files.all().delete()
    (small_corpus / "another.txt").write_text("A text that was not there before. " * 20)
    with pytest.raises(CommandError, match=f"is pinned to {season.dataset_hash[:12]}"):
        say("prepare_season", verbosity=0)


def test_prepared_files_are_stored_once_and_each_job_gets_its_splits(dictionary: None, small_corpus: Path) -> None:
    say("bootstrap_site")
    say("prepare_season", verbosity=0)
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
    say("prepare_season", verbosity=0)
    (small_corpus / "another.txt").write_text("Stored files do not change with the corpus. " * 20)
    say("prepare_season", verbosity=0)
    assert season.dataset("test").files == tuple(scoring.values())


def test_a_corpus_that_is_not_there_is_said_in_one_line(site: Any) -> None:
    Season.objects.create(name="Lost", corpus="files:/nowhere/*.txt", tokenizer="bpe:300")
    with pytest.raises(CommandError, match="/nowhere") as failure:
        say("prepare_season", verbosity=0)
    assert "\n" not in str(failure.value)


def test_enter_makes_an_entry_and_approves_it_on_request(track: Track, main: Repository) -> None:
    said = say("submit_entry", str(main.path), "main", "--title", "Smeared", "--arch", "smear", "--approve")
    entry = Entry.objects.get()
    assert said.startswith(f"entry {entry.pk}: Smeared ({entry.sha[:8]}) by Ada, architecture, proposed\nrun ")
    assert Run.objects.get().state == "queued"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--arch", "mamba"], "no architecture 'mamba'"),
        (["--arch", "gpt", "--track", "huge"], "Unknown track. Tracks: small."),
        (["--arch", "gpt", "--config", "{"], "--config is not JSON"),
        (["--arch", "gpt", "--config", "[]"], "must be a JSON object"),
    ],
)
def test_enter_refuses_with_one_sentence(track: Track, main: Repository, words: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        say("submit_entry", str(main.path), "main", "--title", "x", *words)


def test_the_first_track_is_one_that_its_own_form_would_take(dictionary: None) -> None:
    say("bootstrap_site")
    track = Track.objects.get()
    track.full_clean()
    assert (track.slug, track.seeds, len(track.rungs())) == ("small", 3, 5)


def test_the_ladder_waits_behind_main_and_the_other_entries(dictionary: None, small_corpus: Path) -> None:
    say("bootstrap_site")
    say("prepare_season", verbosity=0)
    trace_waiting_runs()
    fill_ladders()
    queued = list(Run.objects.queued())
    assert [run.purpose for run in queued] == ["nightly", "entry", "entry", "entry", "ladder", "ladder", "ladder"]
    assert [run.budget for run in queued[4:]] == ["1.25e12flops"] * 3
