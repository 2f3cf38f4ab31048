"""Commits that become entries, and their approval."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from leaderboard.models import Entry, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from scheduler.models import Event, Job
from tests.leaderboard.conftest import DICTIONARY, Repository

pytestmark = pytest.mark.processes

IDEA = {
    "trainer/models/__init__.py": DICTIONARY.replace("}", '    "idea": "trainer.models.idea",\n}'),
    "trainer/models/idea.py": "class Model:\n    pass\n",
}


def test_submitted_commit_becomes_entry_with_files(main_repository: Repository, track: Track, tmp_path: Path) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    sha = fork.commit("An idea", IDEA)
    entry = intake.submit_entry(str(fork.path), sha, "My idea", "idea", track, hypothesis="It is better.")
    assert (entry.kind, entry.state, entry.sha, entry.author) == ("architecture", "proposed", sha, "Ada")
    assert entry.base_sha == main_repository.git("rev-parse", "HEAD")
    assert entry.changed_files == ["trainer/models/__init__.py", "trainer/models/idea.py"]
    with tarfile.open(fileobj=io.BytesIO(storage.read_blob(entry.bundle))) as tar:
        assert "trainer/models/idea.py" in tar.getnames()
    assert "entered" in Event.objects.about(entry).get().sentence
    assert not entry.runs.exists()
    again = intake.submit_entry(str(fork.path), sha, "Two", "", track)
    assert (again.pk, again.title, Event.objects.about(entry).count()) == (entry.pk, "My idea", 1)
    assert intake.submit_entry(str(main_repository.path), "main", "Main", "", track).architecture == "gpt"


@pytest.mark.usefixtures("site")
def test_byte_order_mark_in_dictionary_is_accepted(main_repository: Repository) -> None:
    sha = main_repository.commit("Notepad", {"trainer/models/__init__.py": "\ufeff" + DICTIONARY})
    assert list(intake.fetch_commit(str(main_repository.path), sha).architectures) == ["gpt", "smear"]


@pytest.mark.parametrize(
    "more",
    [
        {"trainer/train.py": "print('faster')\n"},
        {"trainer/models/base.py": "import os\n"},
        {"trainer/models/__init__.py": IDEA["trainer/models/__init__.py"] + "\nimport gc\n"},
        {"trainer/models/__init__.py": DICTIONARY.replace("}", '    "idea": f"trainer.models.{print()}",\n}')},
    ],
)
def test_commit_that_changes_other_files_is_an_open_entry(
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
    main_repository: Repository, track: Track, tmp_path: Path, text: str, sentence: str
) -> None:
    marker_file = tmp_path / "ran"
    main_repository.commit("Broken", {"trainer/models/__init__.py": f"open({str(marker_file)!r}, 'w')\n{text}"})
    with pytest.raises(IntakeError, match=sentence):
        intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)
    assert not marker_file.exists()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"budget": "24h"}, "cannot set 'budget'"),
        ({"train": {"sequence_length": 8}}, "cannot set train.sequence_length"),
        ({"model": 3}, "must be a table"),
        ({"train": {"micro_batch": 8}}, "cannot set train.micro_batch"),
        ({"train": {"batch": "0x8"}}, "train.batch must be a whole number"),
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


def test_approval_of_other_commit_is_refused(proposed_entry: Entry, maintainer: User) -> None:
    with pytest.raises(IntakeError, match="You reviewed 00000000"):
        intake.approve_entry(proposed_entry, "0" * 40, maintainer)
    proposed_entry.refresh_from_db()
    assert proposed_entry.state == "proposed"
    assert not Job.objects.exists()


def test_pushed_commit_is_a_new_unapproved_entry(
    main_repository: Repository, track: Track, tmp_path: Path, maintainer: User
) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    fork.commit("An idea", {"trainer/models/gpt.py": "x = 1\n"})
    reviewed_entry = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    pushed_sha = fork.commit("A miner", {"trainer/models/gpt.py": "x = 2\n"})
    intake.approve_entry(reviewed_entry, reviewed_entry.sha, maintainer)
    pushed_entry = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    assert (pushed_entry.sha, pushed_entry.state) == (pushed_sha, "proposed")
    assert pushed_entry.pk != reviewed_entry.pk
    job = Job.objects.get()
    assert job.entry_id == reviewed_entry.bundle_id != pushed_entry.bundle_id
    own = intake.submit_entry(str(main_repository.path), "main", "y", "smear", track, requested_by=maintainer)
    (run,) = intake.approve_entry(own, own.sha, maintainer)
    assert (job.priority, run.job.priority) == (Job.Priority.COMMUNITY, Job.Priority.MAINTAINER)


def test_approved_entry_can_be_withdrawn_but_not_rejected(proposed_entry: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    with pytest.raises(IntakeError, match="is approved, so it cannot be rejected"):
        intake.reject_entry(proposed_entry, "Changed my mind.", maintainer)
    intake.withdraw_entry(proposed_entry)
    run.refresh_from_db()
    assert (proposed_entry.state, run.state) == ("withdrawn", "cancelled")
    assert run.job.state == Job.State.CANCELLED
