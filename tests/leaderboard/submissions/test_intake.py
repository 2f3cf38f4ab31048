from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError

from leaderboard import run_jobs
from leaderboard.models import Entry, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from scheduler.models import Event
from tests.leaderboard.conftest import DICTIONARY, Repository

IDEA = {
    "trainer/models/__init__.py": DICTIONARY.replace("}", '    "idea": "trainer.models.idea",\n}'),
    "trainer/models/idea.py": "class Model:\n    pass\n",
}


def test_entry_without_architecture_uses_the_changed_one(
    main_repository: Repository, track: Track, tmp_path: Path
) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea", IDEA)
    assert intake.submit_entry(str(fork.path), sha, "My idea", "", track).architecture == "idea"
    assert intake.submit_entry(str(main_repository.path), "main", "Main", "", track).architecture == "gpt"


def test_submitted_commit_becomes_entry_with_files(main_repository: Repository, track: Track, tmp_path: Path) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea", IDEA)
    entry = intake.submit_entry(str(fork.path), sha, "My idea", "idea", track, hypothesis="It is better.")
    assert (entry.kind, entry.state, entry.sha, entry.author) == ("architecture", "proposed", sha, "Ada")
    assert entry.base_sha == main_repository.git("rev-parse", "HEAD")
    assert entry.changed_files == ["trainer/models/__init__.py", "trainer/models/idea.py"]
    assert entry.bundle
    with tarfile.open(fileobj=io.BytesIO(storage.read_blob(entry.bundle))) as tar:
        assert "trainer/models/idea.py" in tar.getnames()
    assert "entered" in Event.objects.about(entry).get().sentence
    assert not entry.runs.exists()


def test_commit_submitted_twice_is_one_entry(main_repository: Repository, track: Track) -> None:
    first = intake.submit_entry(str(main_repository.path), "main", "One", "gpt", track)
    second = intake.submit_entry(str(main_repository.path), first.sha, "Two", "gpt", track)
    assert (second.pk, second.title) == (first.pk, "One")
    assert Event.objects.about(first).count() == 1


def test_commit_that_changes_other_files_is_an_open_entry(
    main_repository: Repository, track: Track, tmp_path: Path
) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    fork.commit("An idea", {**IDEA, "trainer/train.py": "print('faster')\n"})
    assert intake.submit_entry(str(fork.path), "main", "More", "idea", track).kind == Entry.Kind.OPEN


@pytest.mark.parametrize(
    "more",
    [
        {"trainer/models/base.py": "import os\n"},
        {"trainer/models/__init__.py": IDEA["trainer/models/__init__.py"] + "\nimport gc\n"},
        {"trainer/models/__init__.py": DICTIONARY.replace("}", '    "idea": f"trainer.models.{print()}",\n}')},
    ],
)
def test_commit_that_changes_early_imports_is_an_open_entry(
    main_repository: Repository, track: Track, tmp_path: Path, more: dict[str, str]
) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea and more", {**IDEA, **more})
    assert intake.fetch_commit(str(main_repository.path), "main").kind == Entry.Kind.ARCHITECTURE
    if "{print()}" in more.get("trainer/models/__init__.py", ""):
        with pytest.raises(IntakeError, match="plain dict"):
            intake.fetch_commit(str(fork.path), sha)
    else:
        assert intake.fetch_commit(str(fork.path), sha).kind == Entry.Kind.OPEN


def test_commit_of_unrelated_history_is_an_open_entry(
    main_repository: Repository, track: Track, tmp_path: Path
) -> None:
    unrelated_repository = Repository(tmp_path / "stranger")
    unrelated_repository.path.mkdir()
    unrelated_repository.git("init", "--quiet", "-b", "main")
    unrelated_repository.commit("Hello", IDEA | {"trainer/models/gpt.py": "", "trainer/models/smear.py": ""})
    entry = intake.submit_entry(str(unrelated_repository.path), "main", "Stranger", "idea", track)
    assert (entry.kind, entry.base_sha) == (Entry.Kind.OPEN, "")


def test_unknown_architecture_is_refused_with_known_ones(main_repository: Repository, track: Track) -> None:
    with pytest.raises(IntakeError, match="no architecture 'mamba'; it has gpt, smear"):
        intake.submit_entry(str(main_repository.path), "main", "x", "mamba", track)


def test_unknown_commit_is_refused(main_repository: Repository, track: Track) -> None:
    with pytest.raises(IntakeError, match=f"no commit {'0' * 40}"):
        intake.submit_entry(str(main_repository.path), "0" * 40, "x", "gpt", track)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def broken(:\n", "not valid Python"),
        ("x = 1\n", "no dict named ARCHITECTURES"),
        ("ARCHITECTURES = {}\n", "must be a plain dict"),
        ("ARCHITECTURES = dict(gpt='trainer.models.gpt')\n", "must be a plain dict"),
        ("ARCHITECTURES = {'gpt': open('/etc/passwd').read()}\n", "must be a plain dict"),
        ("ARCHITECTURES = {'gpt': 1}\n", "must be a plain dict"),
        ("ARCHITECTURES = {'gpt': 'trainer.models.nothing'}\n", "has no such file"),
        ("ARCHITECTURES = {'gpt': 'os.path'}\n", "has no such file"),
        ("(" * 5000, "not valid Python"),
        (f"ARCHITECTURES = {{'gpt': 'trainer.models.gpt'}}\nx = {'1+' * 2000}1\n", "nested too deeply"),
    ],
)
def test_invalid_architectures_dict_is_refused_without_import(
    main_repository: Repository, track: Track, text: str, sentence: str
) -> None:
    main_repository.commit("Broken", {"trainer/models/__init__.py": text})
    with pytest.raises(IntakeError, match=sentence):
        intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)


def test_submitted_code_is_not_imported(main_repository: Repository, track: Track, tmp_path: Path) -> None:
    marker_file = tmp_path / "ran"
    main_repository.commit("Hostile", {"trainer/models/__init__.py": f"open({str(marker_file)!r}, 'w')\n{DICTIONARY}"})
    intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)
    assert not marker_file.exists()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"budget": "24h"}, "cannot set 'budget'"),
        ({"dataset": "/etc"}, "cannot set 'dataset'"),
        ({"train": {"sequence_length": 8}}, "cannot set train.sequence_length"),
        ({"model": 3}, "must be a table"),
        ({"train": {"micro_batch": 8}}, "cannot set train.micro_batch"),
        ({"train": {"batch": "0x8"}}, "train.batch must be a whole number"),
        ({"train": {"batch": 0}}, "train.batch must be a whole number"),
        ({"train": {"batch": True}}, "train.batch must be a whole number"),
        ({"model": {"x": "y" * 10_000}}, "too long"),
        ({"model": {"depth 2 $(id) #": 1}}, "has an option 'depth 2"),
        ({"recipe": {"matrices": {"; id": 1}}}, "has an option '; id'"),
    ],
)
def test_entry_config_with_track_settings_is_refused(
    main_repository: Repository, track: Track, config: dict[str, object], sentence: str
) -> None:
    with pytest.raises(IntakeError, match=sentence):
        intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track, config=config)


def test_repository_error_is_an_intake_error(main_repository: Repository, track: Track) -> None:
    (main_repository.path / "trainer/models/secret.py").symlink_to("/etc/passwd")
    main_repository.commit("A link")
    with pytest.raises(IntakeError, match="is a link"):
        intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)
    assert not Entry.objects.exists()


PRESETS = DICTIONARY.replace("}", '    "rwkv5": "trainer.models.rwkv5",\n}', 1) + (
    '\nPRESETS = {"rwkv5-7b": ("rwkv5", "7b"), "rwkv5-tiny": ("rwkv5", "tiny")}\n'
)


@pytest.fixture
def rwkv_main(main_repository: Repository) -> Repository:
    main_repository.commit(
        "RWKV-5", {"trainer/models/__init__.py": PRESETS, "trainer/models/rwkv5.py": "class Model:\n    pass\n"}
    )
    return main_repository


@pytest.fixture
def long_run(track: Track) -> Track:
    config = {"arch": "rwkv5-7b", "devices": 8, "train": {"strategy": "zero2"}}
    Track.objects.filter(pk=track.pk).update(
        config=config, budget="627B-tokens", needs_labels=["8x80gb"], is_traced=False, ladder={}
    )
    track.refresh_from_db()
    return track


def test_entry_with_preset_size_uses_it(rwkv_main: Repository, track: Track) -> None:
    entry = intake.submit_entry(str(rwkv_main.path), "main", "Small", "rwkv5-tiny", track)
    assert run_jobs.get_entry_configuration(entry, track)["arch"] == "rwkv5-tiny"
    with pytest.raises(IntakeError, match=r"no architecture 'rwkv5-9b'; it has gpt, rwkv5, rwkv5-7b, rwkv5-tiny"):
        intake.submit_entry(str(rwkv_main.path), "main", "Huge", "rwkv5-9b", track)


def test_entry_without_size_uses_preset_of_track(rwkv_main: Repository, long_run: Track) -> None:
    entry = intake.submit_entry(str(rwkv_main.path), "main", "Eagle", "rwkv5", long_run)
    assert run_jobs.get_entry_configuration(entry, long_run)["arch"] == "rwkv5-7b"


def test_entry_too_large_for_gpus_of_track_is_refused(rwkv_main: Repository, long_run: Track) -> None:
    with pytest.raises(IntakeError, match=r"gpt without a size gets depth \d+ .* billion parameters.* with 80 GB"):
        intake.submit_entry(str(rwkv_main.path), "main", "GPT", "gpt", long_run)
    long_run.config["devices"], long_run.needs_labels = 1, ["1x24gb"]
    with pytest.raises(ValidationError, match=r"rwkv5-7b has 7\.\d billion parameters.* with 24 GB"):
        long_run.full_clean()


def test_variant_of_main_is_refused(main_repository: Repository, track: Track) -> None:
    with pytest.raises(IntakeError, match="is for main itself"):
        intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track, variant=Entry.MAIN_VARIANT)
