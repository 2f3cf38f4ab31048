"""The coordinator's journal: its state, its lock, and an incomplete last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import coordinator_main
from trainer.swarm.journal import (
    JOURNAL_FILE,
    Journal,
    JournalLine,
    JournalState,
    get_losses,
    read_journal,
)


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    journal.write("commit", step=0, loss=5.0)
    journal.close()
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"kind": "commit", "step": 1, "lo')
    assert [line["kind"] for line in read_journal(tmp_path)] == ["run", "commit"]
    journal = Journal(tmp_path)
    journal.write("commit", step=1, loss=4.0)
    journal.close()
    assert get_losses(read_journal(tmp_path)) == [5.0, 4.0]


def test_second_coordinator_is_refused_in_one_line(
    tmp_path: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path)
    journal.write("run", config={"steps": 3})
    (tmp_path / "config.json").write_text(build_tiny_config(Dataset.open(dataset_folder)).model_dump_json())
    flags = ["--out", tmp_path, "--dataset", dataset_folder, "--config", tmp_path / "config.json"]
    assert coordinator_main.main([str(flag) for flag in flags]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path} is in use by another coordinator")
    assert not list(tmp_path.glob("*.key"))
    journal.write("start", generation=1)
    journal.close()
    Journal(tmp_path).close()
    assert [line["kind"] for line in read_journal(tmp_path)] == ["run", "start"]


def test_state_has_members_and_the_version_after_a_rollback() -> None:
    lines: list[JournalLine] = [{"kind": "start", "generation": 4}]
    lines += [{"kind": kind, "peer": peer} for kind, peer in (("join", "a"), ("join", "b"), ("leave", "a"))]
    lines += [{"kind": "commit", "step": step, "loss": 5.0 - step} for step in range(4)]
    lines.append({"kind": "rollback", "to": 2})
    state = JournalState.from_lines(lines)
    assert (list(state.members), state.generation, state.version, state.commit) == (["b"], 4, 2, None)
    again = {"kind": "commit", "step": 2, "loss": 1.0}
    state = JournalState.from_lines([*lines, again])
    assert (state.version, state.commit) == (3, again)
    assert get_losses([*lines, again]) == [5.0, 4.0, 1.0, 2.0]
