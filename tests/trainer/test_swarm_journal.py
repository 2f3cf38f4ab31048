"""A coordinator's memory: what its lines say, and a last line that was not finished."""

from __future__ import annotations

from pathlib import Path

from trainer.swarm.journal import NAME, History, Journal, losses, read


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
