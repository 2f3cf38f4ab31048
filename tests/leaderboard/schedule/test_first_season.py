from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import first_season
from leaderboard.tasks import fill_ladders
from scheduler import storage
from scheduler.models import Blob, Job
from tests.leaderboard.conftest import DICTIONARY, Repository
from tests.support.graph_jobs import finish_trace
from trainer.scoring import benchmark_tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def architectures_on_main(main_repository: Repository, site: Any) -> None:
    """Commit the architectures that a new site trains to main."""
    more = ("litgpt", "nanogpt")
    text = DICTIONARY.replace("}", "".join(f'    "{name}": "trainer.models.{name}",\n' for name in more) + "}")
    files: dict[str, str | bytes] = {f"trainer/models/{name}.py": "x = 1\n" for name in more}
    main_repository.commit("More models", {"trainer/models/__init__.py": text, **files})


@pytest.fixture
def small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    main_repository.commit("main goes on")
    run_command("bootstrap_site")
    assert Run.objects.count() == 4


def test_other_architectures_wait_until_the_first_run_is_over(architectures_on_main: None) -> None:
    run_command("bootstrap_site", main_only=True)
    assert not first_season.enter_after_first_run()
    assert Entry.objects.get().kind == "main"
    Run.objects.update(state=Run.State.FINISHED)
    for _ in range(2):
        assert first_season.enter_after_first_run()
        assert Entry.objects.count() == 4


def test_other_architectures_are_not_entered_in_a_later_season(architectures_on_main: None) -> None:
    run_command("bootstrap_site", main_only=True)
    Run.objects.update(state=Run.State.FINISHED)
    Season.objects.update(name="Season 1")
    assert first_season.enter_after_first_run()
    assert Entry.objects.get().kind == "main"


def test_bootstrap_site_with_superuser_creates_administrator(architectures_on_main: None) -> None:
    run_command("bootstrap_site")
    assert not User.objects.exists()
    output_words = run_command("bootstrap_site", superuser="mara").splitlines()[-1].split()
    assert User.objects.get(username="mara", is_superuser=True).check_password(
        output_words[output_words.index("password") + 1]
    )
    assert "exists already" in run_command("bootstrap_site", superuser="mara")


def test_bootstrap_site_without_repository_fails_with_reason(site: Any, tmp_path: Path) -> None:
    site.MAIN_REPOSITORY = str(tmp_path / "nowhere")
    with pytest.raises(CommandError, match="There is no repository at"):
        run_command("bootstrap_site")


def test_prepare_season_pins_dataset_and_queues_waiting_runs(architectures_on_main: None, small_corpus: Path) -> None:
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
    (small_corpus / "another.txt").write_text("A text that was not there before. " * 20)
    with pytest.raises(CommandError, match=f"is pinned to {season.dataset_hash[:12]}"):
        run_command("prepare_season", verbosity=0)


def test_prepared_files_are_stored_once_with_splits_per_job(architectures_on_main: None, small_corpus: Path) -> None:
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
    (small_corpus / "another.txt").write_text("Stored files do not change with the corpus. " * 20)
    run_command("prepare_season", verbosity=0)
    assert season.dataset("test").files == tuple(scoring.values())


def test_prepare_season_stores_shipped_evaluation_data(architectures_on_main: None, small_corpus: Path) -> None:
    run_command("prepare_season", verbosity=0)
    run_command("bootstrap_site")
    season = Season.objects.get()
    assert season.list_missing_tasks(Track.objects.get().suite) == []
    files = season.get_evaluation_files(["blimp_sample"])
    assert [file.path.partition("/")[0] for file in files] == ["blimp_sample"] * 4
    shipped = benchmark_tasks.SHIPPED / files[0].path
    assert storage.read_blob(Blob.objects.get(pk=files[0].sha256)) == shipped.read_bytes()
    assert files[0].path not in {file.path for file in season.dataset("test").files or ()}
    assert not storage.delete_unreferenced_blob(files[0].sha256)
    run_command("prepare_season", verbosity=0)
    assert season.get_evaluation_files(["blimp_sample"]) == files


def test_prepare_season_without_task_data_warns(architectures_on_main: None, small_corpus: Path) -> None:
    run_command("bootstrap_site")
    Track.objects.update(suite=["hellaswag", "blimp_sample"])
    warnings = StringIO()
    run_command("prepare_season", verbosity=0, stderr=warnings, eval_data=small_corpus)
    assert warnings.getvalue() == "No evaluation data of hellaswag: runs are scored without it.\n"
    assert Season.objects.get().list_missing_tasks(["hellaswag", "blimp_sample"]) == ["hellaswag"]


def test_track_with_an_unknown_benchmark_is_refused(track: Track) -> None:
    track.suite = ["blimp", "mmlu"]
    with pytest.raises(ValidationError, match="There is no task 'mmlu' in the suite; known: blimp, "):
        track.full_clean()


def test_submit_entry_command_with_approve_queues_run(track: Track, main_repository: Repository) -> None:
    output = run_command(
        "submit_entry", str(main_repository.path), "main", "--title", "Smeared", "--arch", "smear", "--approve"
    )
    entry = Entry.objects.get()
    assert output.startswith(f"entry {entry.pk}: Smeared ({entry.sha[:8]}) by Ada, architecture, proposed\nrun ")
    assert Run.objects.get().state == "queued"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "mamba"], "no architecture 'mamba'"),
        (["--arch", "gpt", "--track", "huge"], "Unknown track. Tracks: small."),
        (["--arch", "gpt", "--config", "{"], "--config is not JSON"),
        (["--arch", "gpt", "--config", "[]"], "must be a JSON object"),
    ],
)
def test_submit_entry_command_with_invalid_arguments_fails(
    track: Track, main_repository: Repository, arguments: list[str], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        run_command("submit_entry", str(main_repository.path), "main", "--title", "x", *arguments)


def test_bootstrapped_ladder_is_queued_after_entries(architectures_on_main: None, small_corpus: Path) -> None:
    run_command("bootstrap_site")
    run_command("prepare_season", verbosity=0)
    trace_waiting_runs()
    fill_ladders()
    queued = list(Run.objects.queued())
    assert [run.purpose for run in queued] == ["nightly", "entry", "entry", "entry", "ladder", "ladder", "ladder"]
    assert [run.budget for run in queued[4:]] == ["6.25e11flops"] * 3
