"""The folders of a job on a node."""

from __future__ import annotations

from pathlib import Path

from trainer.node.workspace import remove_folder


def test_remove_folder_ignores_permissions_and_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "out" / "closed" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "closed" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "out" / "closed").chmod(0)
    remove_folder(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "kept").is_dir()
