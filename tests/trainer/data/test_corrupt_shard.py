"""Damaged data ends a run in one line with the file and the remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import TINY
from trainer.data.dataset import Dataset
from trainer.data.loader import build_loader
from trainer.errors import DamagedDatasetError


@pytest.fixture
def folder(dataset_folder: Path, tmp_path: Path) -> Path:
    """A dataset to be damaged."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "dataset"))


def flip(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def truncate(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-100])


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "flipped": (flip, "is damaged: its sha256 is not the manifest's"),
    "truncated": (truncate, "bytes instead of"),
    "missing": (Path.unlink, "is missing from the dataset"),
}


@pytest.mark.parametrize(("damage", "split"), [("flipped", "train"), ("truncated", "dev"), ("missing", "train")])
def test_damaged_shard_stops_run_before_first_step(
    folder: Path, tmp_path: Path, split: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.train import main

    shard = folder / split / "00000.bin"
    spoil, sentence = DAMAGE[damage]
    spoil(shard)
    assert main(["--dataset", str(folder), "--out", str(tmp_path / "run"), "--budget", "2steps", *TINY]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(shard) in line
    assert sentence in line
    assert f"delete the folder {folder} and prepare the dataset again" in line
    assert json.loads((tmp_path / "run" / "failure.json").read_text())["cause"] == "infrastructure"


def test_shard_truncated_in_use_raises_error(folder: Path) -> None:
    """With a memory map this would kill the process without a message."""
    loading = build_loader(Dataset.open(folder), "train", "blocks", 4, 32, seed=1)
    loading.next_batch()
    (folder / "train" / "00000.bin").write_bytes(b"")
    complaint = r"train/00000.bin is damaged: it was cut short while it was in use: delete"
    with pytest.raises(DamagedDatasetError, match=complaint):
        # Some batches had been read before.
        all(loading.next_batch() for _ in range(10))
    loading.close()


def test_verify_splits_files_among_ranks(folder: Path) -> None:
    dataset = Dataset.open(folder)
    flip(folder / "dev" / "00000.bin")
    files = len(dataset.manifest["splits"]["train"]["shards"]) + 1
    found = 0
    for rank in range(files):
        try:
            dataset.verify(("train", "dev"), rank, files)
        except DamagedDatasetError:
            found += 1
    assert found == 1
