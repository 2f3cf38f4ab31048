from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.paths import REPOSITORY
from trainer.data import dataset, preparation, tokenization
from trainer.data.corpora import Document
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.spool import Spool, SpoolWriter
from trainer.errors import CorpusError, DatasetError

pytestmark = pytest.mark.processes

PREPARE = """
import sys, time
from trainer.data import tokenization
from trainer.data.dataset import prepare_dataset
tokenization.SHARD_TEXT, tokenization.PARALLEL_TEXT = 100_000, 0
write_shard = tokenization.ShardWriter.write_shard
def write_three_shards(writer, task):
    while task.path > "train/00002.bin":
        time.sleep(1)
    return write_shard(writer, task)
if sys.argv[3:]:  # the workers run this line, too
    tokenization.ShardWriter.write_shard = write_three_shards
if __name__ == "__main__":
    prepare_dataset(sys.argv[1], "bpe:400", sys.argv[2])
"""


def write_pages(folder: Path, pages: int) -> str:
    lines = (json.dumps({"text": f"Page {n}. " + " ".join(str(n * word) for word in range(200))}) for n in range(pages))
    (folder / "pages.jsonl").write_text("\n".join(lines))
    return f"files:{folder}/pages.jsonl"


def read_shards(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_preparation_killed_while_tokenizing_continues_and_loses_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / ".out.preparing"
    corpus, journal = write_pages(tmp_path, 1000), partial / "spool" / "shards.jsonl"
    script = tmp_path / "prepare_dataset.py"
    script.write_text(PREPARE)
    command, environment = [sys.executable, str(script), corpus, str(tmp_path / "out")], {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([*command, "three shards"], env=os.environ | environment)
    while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") >= 2):
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(workers)  # they end with the main process
    finished = [json.loads(line)["path"] for line in journal.read_text().splitlines()]
    times = {name: (partial / name).stat().st_mtime_ns for name in finished}
    assert len(times) >= 2
    subprocess.run(command, env=os.environ | environment, check=True)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in finished} == times
    monkeypatch.setattr(tokenization, "SHARD_TEXT", 100_000)
    whole = prepare_dataset(corpus, "bpe:400", tmp_path / "whole")
    assert read_shards(tmp_path / "out") == read_shards(whole.folder)
    assert not partial.exists()


def test_preparation_stopped_while_reading_continues_at_saved_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_pages(tmp_path, 60)
    whole = prepare_dataset(corpus, "bpe:300", tmp_path / "whole")
    lines = (tmp_path / "pages.jsonl").read_text()
    monkeypatch.setattr(preparation, "SAVE_SECONDS", 0.0)
    add, added = SpoolWriter.add, list[str]()

    def break_at(writer: SpoolWriter, document: Document, max_bytes: int | None = None) -> int:
        if len(added) == 40:
            raise CorpusError("the connection was lost")
        added.append(document.id)
        return add(writer, document, max_bytes)

    monkeypatch.setattr(SpoolWriter, "add", break_at)
    with pytest.raises(CorpusError):
        prepare_dataset(corpus, "bpe:300", tmp_path / "out")
    added.clear()
    begun = tmp_path / ".begun"
    shutil.copytree(tmp_path / ".out.preparing", begun)
    resumed: Dataset = prepare_dataset(corpus, "bpe:300", tmp_path / "out")
    assert added == [f"pages.jsonl:{number}" for number in range(41, 61)]
    assert resumed.hash == whole.hash
    assert (tmp_path / "pages.jsonl").read_text() == lines
    monkeypatch.setattr(dataset, "PREPARATION_VERSION", dataset.PREPARATION_VERSION + 1)
    begun.rename(tmp_path / ".later.preparing")
    added.clear()
    with pytest.raises(CorpusError):  # at the 41st document again
        prepare_dataset(corpus, "bpe:300", tmp_path / "later")
    assert added[0] == "pages.jsonl:1", "another preparation version starts over"


@pytest.mark.parametrize("name", ["spool/shards.jsonl", "tokenizer.json", "manifest.json"])
def test_file_that_cannot_be_flushed_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As if the power failed while it was written."""
    corpus, partial, fsync = write_pages(tmp_path, 60), tmp_path / ".out.preparing", os.fsync
    interrupted = tmp_path / "interrupted"

    def fail_at(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        if interrupted.exists() and file.name == f".{Path(name).name}.partial":
            raise OSError("no power")
        fsync(descriptor)

    interrupted.touch()
    monkeypatch.setattr(os, "fsync", fail_at)
    with pytest.raises(DatasetError):
        prepare_dataset(corpus, "bpe:300", tmp_path / "out")
    assert not (partial / name).exists()
    interrupted.unlink()
    prepare_dataset(corpus, "bpe:300", tmp_path / "out").verify()


def test_spool_continues_after_last_save(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "spool") as spool:
        assert [spool.add(Document(name, "one")) for name in "ab"] == [3, 0], "a repeated text is added once"
        spool.save({"documents": 1})
        spool.add(Document("b", "two, lost with its writer"))
    with SpoolWriter(tmp_path / "spool") as spool:
        assert (spool.size, spool.position, spool.is_complete) == (3, {"documents": 1}, False)
        assert spool.add(Document("a", "one")) == 0
        spool.add(Document("c", "three"))
        spool.save(None, complete=True)
    with Spool(tmp_path / "spool") as complete:
        assert [complete.read_document(number).text for number in range(len(complete))] == ["one", "three"]
