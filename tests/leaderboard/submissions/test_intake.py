from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

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


def test_without_a_name_the_architecture_that_the_commit_changes_is_meant(
    main: Repository, track: Track, tmp_path: Path
) -> None:
    fork = main.fork(tmp_path / "fork")
    sha = fork.commit("An idea", IDEA)
    assert intake.submit_entry(str(fork.path), sha, "My idea", "", track).architecture == "idea"
    assert intake.submit_entry(str(main.path), "main", "Main", "", track).architecture == "gpt"


def test_a_commit_becomes_an_entry_with_its_files(main: Repository, track: Track, tmp_path: Path) -> None:
    fork = main.fork(tmp_path / "fork")
    sha = fork.commit("An idea", IDEA)
    entry = intake.submit_entry(str(fork.path), sha, "My idea", "idea", track, hypothesis="It is better.")
    assert (entry.kind, entry.state, entry.sha, entry.author) == ("architecture", "proposed", sha, "Ada")
    assert entry.base_sha == main.git("rev-parse", "HEAD")
    assert entry.changed_files == ["trainer/models/__init__.py", "trainer/models/idea.py"]
    assert entry.bundle
    with tarfile.open(fileobj=io.BytesIO(storage.read_blob(entry.bundle))) as tar:
        assert "trainer/models/idea.py" in tar.getnames()
    assert "entered" in Event.objects.about(entry).get().sentence
    assert not entry.runs.exists()


def test_the_same_commit_twice_is_one_entry(main: Repository, track: Track) -> None:
    first = intake.submit_entry(str(main.path), "main", "One", "gpt", track)
    again = intake.submit_entry(str(main.path), first.sha, "Two", "gpt", track)
    assert (again.pk, again.title) == (first.pk, "One")
    assert Event.objects.about(first).count() == 1


def test_a_commit_that_changes_more_is_an_open_entry(main: Repository, track: Track, tmp_path: Path) -> None:
    fork = main.fork(tmp_path / "fork")
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
def test_what_runs_before_the_loop_is_guarded_makes_an_open_entry(
    main: Repository, track: Track, tmp_path: Path, more: dict[str, str]
) -> None:
    fork = main.fork(tmp_path / "fork")
    sha = fork.commit("An idea and more", {**IDEA, **more})
    assert intake.fetch_commit(str(main.path), "main").kind == Entry.Kind.ARCHITECTURE
    if "{print()}" in more.get("trainer/models/__init__.py", ""):
        with pytest.raises(IntakeError, match="plain dict"):
            intake.fetch_commit(str(fork.path), sha)
    else:
        assert intake.fetch_commit(str(fork.path), sha).kind == Entry.Kind.OPEN


def test_a_history_of_its_own_makes_an_open_entry(main: Repository, track: Track, tmp_path: Path) -> None:
    stranger = Repository(tmp_path / "stranger")
    stranger.path.mkdir()
    stranger.git("init", "--quiet", "-b", "main")
    stranger.commit("Hello", IDEA | {"trainer/models/gpt.py": "", "trainer/models/smear.py": ""})
    entry = intake.submit_entry(str(stranger.path), "main", "Stranger", "idea", track)
    assert (entry.kind, entry.base_sha) == (Entry.Kind.OPEN, "")


def test_an_unknown_architecture_is_refused_and_the_known_ones_are_named(main: Repository, track: Track) -> None:
    with pytest.raises(IntakeError, match="no architecture 'mamba'; it has gpt, smear"):
        intake.submit_entry(str(main.path), "main", "x", "mamba", track)


def test_an_unknown_commit_is_refused(main: Repository, track: Track) -> None:
    with pytest.raises(IntakeError, match=f"no commit {'0' * 40}"):
        intake.submit_entry(str(main.path), "0" * 40, "x", "gpt", track)


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
    ],
)
def test_the_dict_is_read_as_text_and_a_wrong_one_refused(
    main: Repository, track: Track, text: str, sentence: str
) -> None:
    main.commit("Broken", {"trainer/models/__init__.py": text})
    with pytest.raises(IntakeError, match=sentence):
        intake.submit_entry(str(main.path), "main", "x", "gpt", track)


def test_nothing_of_the_commit_is_imported(main: Repository, track: Track, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    main.commit("Hostile", {"trainer/models/__init__.py": f"open({str(proof)!r}, 'w')\n{DICTIONARY}"})
    intake.submit_entry(str(main.path), "main", "x", "gpt", track)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"budget": "24h"}, "cannot set 'budget'"),
        ({"dataset": "/etc"}, "cannot set 'dataset'"),
        ({"train": {"sequence_length": 8}}, "cannot set train.sequence_length"),
        ({"model": 3}, "must be a table"),
        ({"model": {"x": "y" * 10_000}}, "too long"),
    ],
)
def test_an_entry_cannot_set_what_is_the_tracks(
    main: Repository, track: Track, config: dict[str, object], sentence: str
) -> None:
    with pytest.raises(IntakeError, match=sentence):
        intake.submit_entry(str(main.path), "main", "x", "gpt", track, config=config)


def test_what_repositories_refuse_comes_as_one_sentence(main: Repository, track: Track) -> None:
    (main.path / "trainer/models/secret.py").symlink_to("/etc/passwd")
    main.commit("A link")
    with pytest.raises(IntakeError, match="is a link"):
        intake.submit_entry(str(main.path), "main", "x", "gpt", track)
    assert not Entry.objects.exists()
