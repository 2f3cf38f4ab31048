from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.waits import WAIT_SECONDS
from trainer.data import shards, tokenization
from trainer.data.corpora import open_corpus
from trainer.data.dataset import Dataset, get_cache_folder, iterate_test_documents, prepare_dataset
from trainer.errors import CorpusError, DatasetError

pytestmark = pytest.mark.processes

LIMIT = 150_000
SCRIPT = """
import sys
from trainer.data.dataset import prepare_dataset
print(prepare_dataset("python-library", "bpe:512", limit_bytes=int(sys.argv[1])).hash)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset that no test changes."""
    return prepare_dataset("python-library", "bpe:512", tmp_path_factory.mktemp("made") / "dataset", LIMIT)


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


def test_repeated_request_reuses_dataset(books: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = (None, tmp_path / "named")
    prepared = [prepare_dataset(f"files:{books}", "bpe:300", place) for place in places]

    def fail_if_called(*_: object) -> None:
        raise AssertionError("it was prepared again")

    monkeypatch.setattr("trainer.data.preparation.build_dataset", fail_if_called)
    again = [prepare_dataset(f"files:{books}", "bpe:300", place) for place in places]
    assert [dataset.folder for dataset in prepared] == [dataset.folder for dataset in again]


def test_preparation_without_processor_affinity_succeeds(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(tokenization, "PARALLEL_TEXT", 0)
    monkeypatch.delattr(os, "sched_getaffinity")
    prepare_dataset(f"files:{books}", "bpe:300").verify()


def test_folder_with_other_files_is_not_overwritten(books: Path, prepared: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DatasetError, match="exists and is not a dataset"):
        prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "mine")
    with pytest.raises(DatasetError, match=r"holds another dataset \(python-library\)"):
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


@pytest.mark.parametrize("alphabet", ["abcdefgh ij\n", "字漢語文書本語\n", "x"])
def test_single_small_text_is_cut_for_all_splits(tmp_path: Path, alphabet: str) -> None:
    digits = np.random.default_rng(1).integers(0, len(alphabet), 9000)
    text = "".join(alphabet[digit] for digit in digits) if len(alphabet) > 1 else "".join(map(str, digits + 1))
    text = "".join(f"{text[start : start + 50]}{start}" for start in range(0, len(text), 50))
    (tmp_path / "a.txt").write_text(text)
    dataset = prepare_dataset(f"files:{tmp_path}/a.txt", "bpe:300")
    for split in ("train", "dev", "test"):
        assert dataset.manifest["splits"][split]["bytes"] >= 1024
    assert sum(split["bytes"] for split in dataset.manifest["splits"].values()) == len(text.encode())


def test_limit_is_exact_and_splits_no_character(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"zwölf Straßen {number}\n" for number in range(2000)))
    for limit in range(20_000, 20_006):
        dataset = prepare_dataset(f"files:{tmp_path}/a.txt", "bpe:300", limit_bytes=limit)
        assert limit - 3 <= sum(split["bytes"] for split in dataset.manifest["splits"].values()) <= limit
    with pytest.raises(DatasetError, match="greater than 0"):
        prepare_dataset(f"files:{tmp_path}/a.txt", limit_bytes=0)


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


def test_shards_have_whole_documents_and_are_read_as_one(
    books: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "whole")
    monkeypatch.setattr(tokenization, "SHARD_TEXT", 4000)
    cut = prepare_dataset(f"files:{books}", "bpe:300", tmp_path / "cut")
    shards = cut.open_shards("train")
    assert len(shards) > 2
    assert {int(shard[:1][0]) for shard in shards} == {cut.tokenizer.end_of_text}
    assert read_texts(cut, "train") == read_texts(whole, "train")
    start = len(shards[0]) - 5
    assert (
        cut.open_stream("train").read_tokens(start, 2010).tolist()
        == whole.open_stream("train").read_tokens(start, 2010).tolist()
    )


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


def test_large_vocabulary_uses_four_bytes_per_token() -> None:
    assert [shards.get_token_dtype(size).itemsize for size in (257, 65536, 65537)] == [2, 2, 4]


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


def test_concurrent_preparations_build_once(cache: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(LIMIT)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=WAIT_SECONDS) for process in started]
    assert len({out for out, _ in answers}) == 1, answers
    assert [path.name[:15] for path in (cache / "datasets").iterdir()] == ["python-library-"]
