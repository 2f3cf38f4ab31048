"""A coordinator's memory: what its lines say, and a last line that was not finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.swarm_chain import tiny
from trainer.data.dataset import Dataset
from trainer.swarm import coordinator
from trainer.swarm.journal import NAME, History, Journal, Led, losses, read


def test_a_line_that_was_cut_off_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    journal.write("commit", step=0, loss=5.0)
    journal.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"kind": "commit", "step": 1, "lo')
    assert [line["kind"] for line in read(tmp_path)] == ["run", "commit"]
    journal = Journal(tmp_path)
    journal.write("commit", step=1, loss=4.0)
    journal.close()
    assert losses(read(tmp_path)) == [5.0, 4.0]


def test_of_two_coordinators_only_one_writes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    with pytest.raises(Led, match="led by another coordinator"):
        Journal(tmp_path)
    journal.write("start", generation=1)
    journal.close()
    Journal(tmp_path).close()
    assert [line["kind"] for line in read(tmp_path)] == ["run", "start"]


def test_a_second_coordinator_is_refused_in_a_sentence(
    tmp_path: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path)
    (tmp_path / "config.json").write_text(tiny(Dataset.open(dataset_folder)).model_dump_json())
    flags = ["--folder", tmp_path, "--dataset", dataset_folder, "--config", tmp_path / "config.json"]
    assert coordinator.main([str(flag) for flag in flags]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path} is led by another coordinator")
    assert not list(tmp_path.glob("*.key"))
    journal.close()


def test_who_joined_and_did_not_leave_belongs(tmp_path: Path) -> None:
    lines = [
        {"kind": "start", "generation": 4},
        {"kind": "join", "peer": "a"},
        {"kind": "join", "peer": "b"},
        {"kind": "leave", "peer": "a"},
    ]
    history = History.of(lines)
    assert list(history.members) == ["b"]
    assert history.generation == 4


def test_after_a_rollback_its_version_counts_and_no_commit_is_owed() -> None:
    commits = [{"kind": "commit", "step": step, "loss": 5.0 - step} for step in range(4)]
    history = History.of([*commits, {"kind": "rollback", "to": 2}])
    assert (history.version, history.commit) == (2, None)
    again = {"kind": "commit", "step": 2, "loss": 1.0}
    history = History.of([*commits, {"kind": "rollback", "to": 2}, again])
    assert (history.version, history.commit) == (3, again)
    assert losses([*commits, {"kind": "rollback", "to": 2}, again]) == [5.0, 4.0, 1.0, 2.0]
