"""Datasets: exact splits, reuse, resumed preparations and damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.paths import REPOSITORY
from tests.support.tiny import TINY
from tests.support.waits import WAIT_SECONDS
from trainer.data import dataset, preparation, shards, tokenization
from trainer.data.corpora import Document, open_corpus
from trainer.data.dataset import Dataset, get_cache_folder, iterate_test_documents, prepare_dataset
from trainer.data.loader import build_loader
from trainer.data.splits import DEV, LONG_FRACTION, TEST, TRAIN, assign_splits, cut_document
from trainer.data.spool import SpoolWriter
from trainer.errors import CorpusError, DamagedDatasetError, DatasetError

pytestmark = pytest.mark.processes

LIMIT = 150_000
SCRIPT = """
import sys
from trainer.data.dataset import prepare_dataset
print(prepare_dataset("python-docs", "bpe:512", limit_bytes=int(sys.argv[1])).hash)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset that no test changes."""
    return prepare_dataset("python-docs", "bpe:512", tmp_path_factory.mktemp("made") / "dataset", LIMIT)


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder of eighty different text files."""
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(80):
        text = f"Book {number}.\n" + " ".join(str(number * word) for word in range(100)) + "\n"
        (folder / f"{number:02d}.txt").write_text(text)
    return folder


def read_texts(dataset: Dataset, split: str) -> list[str]:
    ids = dataset.open_stream(split).read_tokens(0, len(dataset.open_stream(split)))
    ends = [*np.flatnonzero(ids == dataset.tokenizer.end_of_text), len(ids)]
    return [dataset.tokenizer.decode(ids[a + 1 : b]) for a, b in pairwise(ends)]


def test_text_is_in_exactly_one_split(books: Path) -> None:
    (books / "copy.txt").write_text((books / "05.txt").read_text())
    dataset = prepare_dataset(f"files:{books}", "bpe:300")
    parts = [
        read_texts(dataset, "train"),
        read_texts(dataset, "dev"),
        [document.text for document in iterate_test_documents(dataset)],
    ]
    texts = {document.text for document in open_corpus(f"files:{books}")}
    assert sorted(parts[0] + parts[1] + parts[2]) == sorted(texts)
    assert all(parts)
    assert len(texts) == 80


def test_manifest_counts_match_files(prepared: Dataset) -> None:
    rows = prepared.manifest["splits"]
    assert sum(row["bytes"] for row in rows.values()) == LIMIT
    for split in ("train", "dev"):
        texts = read_texts(prepared, split)
        assert rows[split]["documents"] == len(texts)
        assert rows[split]["bytes"] == sum(len(text.encode()) for text in texts)
        assert rows[split]["tokens"] == len(prepared.open_stream(split)) == sum(map(len, prepared.open_shards(split)))
        assert prepared.open_shards(split)[0].dtype == np.dtype("<u2")
    held = list(iterate_test_documents(prepared))
    encoded = prepared.tokenizer.encode_batch([document.text for document in held])
    assert rows["test"]["documents"] == len(held)
    assert rows["test"]["tokens"] == sum(len(ids) + 1 for ids in encoded)
    assert prepared.manifest["tokenizer"]["sha256"] == prepared.tokenizer.sha256
    prepared.verify()


def test_hash_depends_on_content_not_on_location(
    books: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "first")
    moved = books.rename(tmp_path / "moved")
    second = prepare_dataset(f"files:{moved}/*.txt", "bpe:300")
    assert first.hash == second.hash
    assert second.folder.parent == cache / "datasets" == get_cache_folder()
    assert str(tmp_path) not in json.dumps(second.manifest["splits"])
    assert prepare_dataset(f"files:{moved}", "bpe:301").hash != first.hash
    path, times = moved / "07.txt", (moved / "07.txt").stat()
    path.write_text(path.read_text().replace("Book 7", "Buch 7"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = prepare_dataset(f"files:{moved}", "bpe:300")
    assert changed.hash != first.hash
    monkeypatch.setattr("trainer.data.dataset.PREPARATION_VERSION", 0)
    assert prepare_dataset(f"files:{moved}", "bpe:300").folder != changed.folder


def test_folder_with_other_files_is_not_overwritten(books: Path, prepared: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DatasetError, match="exists and is not a dataset"):
        prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "mine")
    with pytest.raises(DatasetError, match=r"holds another dataset \(python-docs\)"):
        prepare_dataset(f"files:{books}", "bpe:300", prepared.folder)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "out").mkdir()
    dataset = prepare_dataset(f"files:{books}", str(prepared.folder / "tokenizer.json"), tmp_path / "out")
    assert dataset.tokenizer.sha256 == prepared.tokenizer.sha256
    names = {"manifest.json", "tokenizer.json", "train", "dev", "test"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names, "an empty folder is filled"
    assert {path.name for path in tmp_path.iterdir()} == {"books", "mine", "out"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "", r"at least 8192 bytes of text; this corpus has \d"),
        ("a.txt", "again and again\n" * 4000, "repeats itself"),
        (
            "a.jsonl",
            (json.dumps({"text": "word " * 200}) + "\n") * 400,
            "this corpus has 1000, without 399 copies of documents",
        ),
    ],
)
def test_unsplittable_corpus_raises_one_line(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=reason) as caught:
        prepare_dataset(f"files:{tmp_path}/{name}", "bpe:300")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [name]
    assert not list(get_cache_folder().iterdir())


@pytest.mark.parametrize(("character", "limit"), [("é", 20_001), ("字", 20_002), ("é", 20_000)])
def test_limit_inside_a_character_ends_the_reading(tmp_path: Path, character: str, limit: int) -> None:
    """All documents have 200 bytes and begin with the character, but for the second one after the limit."""
    texts = [f"{character}{number:04}".ljust(201 - len(character.encode()), ".") for number in range(300)]
    texts[101] = "x".ljust(200, ".")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    dataset = prepare_dataset(f"files:{tmp_path}/a.jsonl", "bpe:300", limit_bytes=limit)
    counts = dataset.manifest["splits"].values()
    assert sum(split["documents"] for split in counts) == 100
    assert sum(split["bytes"] for split in counts) == 20_000
    with pytest.raises(DatasetError, match="greater than 0"):
        prepare_dataset(f"files:{tmp_path}/a.jsonl", limit_bytes=0)


def test_stream_of_more_shards_than_open_files_is_read(tmp_path: Path) -> None:
    """SlimPajama has about 10,000; a sandbox allows 4,096 files."""
    tokens, limits = np.arange(500, dtype="<u2"), resource.getrlimit(resource.RLIMIT_NOFILE)
    for number, part in enumerate(np.split(tokens, 250)):
        (tmp_path / f"{number}.bin").write_bytes(part.tobytes())
    is_open = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (is_open + 50, limits[1]))
    try:
        parts = [shards.Shard(tmp_path / f"{number}.bin", tokens.dtype, 2) for number in range(250)]
        assert shards.TokenStream(parts).read_tokens(0, 500).tolist() == tokens.tolist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text[:100], "cannot be read"),
        (lambda text: "[]", "not of format 1"),
        (lambda text: text.replace('"format": 1', '"format": 3'), "not of format 1"),
        (lambda text: text.replace('"documents"', '"papers"'), "lacks 'documents'"),
        (lambda text: text.replace('"bytes": ', '"bytes": 1'), "its hash does not match"),
        (lambda text: text.replace("train/00000.bin", "../../secret"), "its hash does not match"),
    ],
)
def test_damaged_manifest_raises_one_line(prepared: Dataset, tmp_path: Path, change: object, complaint: str) -> None:
    with pytest.raises(DatasetError, match=r"is not a dataset: it has no manifest.json"):
        Dataset.open(tmp_path)
    text = (prepared.folder / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(change(text))  # type: ignore[operator]
    with pytest.raises(DatasetError, match=complaint) as caught:
        Dataset.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_copy_without_test_split_trains_but_cannot_be_scored(books: Path, tmp_path: Path) -> None:
    folder = prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "out").folder
    (folder / "test" / "documents.jsonl").unlink()
    (folder / "test").rmdir()
    dataset = Dataset.open(folder)
    dataset.verify()
    assert len(dataset.open_stream("train")) > 0
    with pytest.raises(DatasetError, match="has no test split"):
        iterate_test_documents(dataset)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DatasetError, match="is not the tokenizer that the manifest names"):
        Dataset.open(folder)


def test_damaged_dataset_in_cache_is_rebuilt(books: Path) -> None:
    dataset = prepare_dataset(f"files:{books}", "bpe:300")
    (dataset.folder / "train" / "00000.bin").write_bytes(b"")
    again = prepare_dataset(f"files:{books}", "bpe:300")
    assert (again.folder, again.hash) == (dataset.folder, dataset.hash)
    again.verify()


def test_failed_preparation_leaves_no_files(books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (books / "99.txt").write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=r"99.txt is not UTF-8"):
        prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"books"}
    (books / "99.txt").unlink()
    with monkeypatch.context() as full:
        full.setattr(tokenization.FileWriter, "write", raise_disk_full)
        with pytest.raises(DatasetError, match=r"out cannot be written: No space left on device$"):
            prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "out")
    prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"books", "out"}


@pytest.mark.slow
def test_concurrent_preparations_build_once(cache: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(LIMIT)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=WAIT_SECONDS) for process in started]
    assert len({out for out, _ in answers}) == 1, answers
    assert [path.name[:12] for path in (cache / "datasets").iterdir()] == ["python-docs-"]


# --- resumed preparations ---------------------------------------------------------------------------------------------

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


# --- damaged shards ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(dataset_folder: Path, tmp_path: Path) -> Path:
    """A dataset to be damaged."""
    return Path(shutil.copytree(dataset_folder, tmp_path / "dataset"))


@pytest.mark.parametrize(
    ("split", "spoil", "sentence"),
    [
        ("train", lambda content: content[:-9] + b"?" + content[-8:], "is damaged: its sha256 is not the manifest's"),
        ("dev", lambda content: content[:-100], "bytes instead of"),
        ("train", None, "is missing from the dataset"),
    ],
    ids=["changed", "truncated", "missing"],
)
def test_damaged_shard_stops_run_before_first_step(
    folder: Path, tmp_path: Path, split: str, spoil: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.train import main

    shard = folder / split / "00000.bin"
    shard.write_bytes(spoil(shard.read_bytes())) if spoil else shard.unlink()
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


# --- splits -----------------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 100_000), min_size=1, max_size=300)


def draw_keys(count: int) -> np.ndarray:
    digests = (hashlib.sha256(str(number).encode()).digest() for number in range(count))
    return np.array([int.from_bytes(digest[:8], "big") for digest in digests], dtype=np.uint64)


@settings(deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 1000))
def test_document_order_does_not_change_splits(lengths: list[int], seed: int) -> None:
    keys, sizes = draw_keys(len(lengths)), np.array(lengths, dtype=np.uint64)
    order = np.array(random.Random(seed).sample(range(len(lengths)), len(lengths)))
    straight, shuffled = assign_splits(keys, sizes), assign_splits(keys[order], sizes[order])
    assert (straight is None) == (shuffled is None)
    if straight is not None and shuffled is not None:
        assert (straight[order] == shuffled).all()


@settings(deadline=None)
@given(lengths=LENGTHS)
def test_split_has_enough_text_and_train_most(lengths: list[int]) -> None:
    sizes = np.array(lengths, dtype=np.uint64)
    splits = assign_splits(draw_keys(len(lengths)), sizes)
    if splits is None:
        return
    total = int(sizes.sum())
    for split in (DEV, TEST):
        held = int(sizes[splits == split].sum())
        assert held >= min(256 << 10, total // 50)
        assert held <= total * (0.125 + 1 / LONG_FRACTION) + 1
    assert (splits[sizes * LONG_FRACTION > total] == TRAIN).all()


def test_many_documents_are_split_by_hash_alone() -> None:
    keys = draw_keys(30_000)
    few, many = (assign_splits(keys[:count], np.full(count, 5000, dtype=np.uint64)) for count in (20_000, 30_000))
    assert few is not None
    assert many is not None
    assert (few == many[:20_000]).all()
    for split in (DEV, TEST):
        assert 0.008 < (many == split).mean() < 0.012


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab \n.é😀"), max_size=400), size=st.integers(1, 50))
def test_pieces_cover_document_and_are_bounded(text: str, size: int) -> None:
    pieces = list(cut_document(Document("a", text), size))
    assert "".join(piece.text for piece in pieces) == text
    assert len({piece.id for piece in pieces}) == len(pieces)
    step = max(1, size * len(text) // max(1, len(text.encode())))
    assert all(len(piece.text) <= max(1, 3 * step // 2) for piece in pieces)
