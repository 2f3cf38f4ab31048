"""Evaluation data from its pinned sources, over real sockets."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dataset_hub import serve_datasets
from tests.support.http_server import Handler, run_server
from tests.support.hub_server import git_id
from tests.support.waits import WAIT_SECONDS
from trainer.scoring import benchmark_tasks, fetch_benchmarks
from trainer.scoring.benchmark_sources import GitFile, HubSplit, find_source

pytestmark = pytest.mark.processes

pyarrow = pytest.importorskip("pyarrow")

COPA = find_source("copa/validation.jsonl.gz")
ROWS = [{"premise": f"It rained {n} times.", "label": n % 2, "idx": n} for n in range(7)]


def write_parquet(rows: list[dict[str, object]]) -> bytes:
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def build_repository(configuration: str, split: str, rows: list[dict[str, object]]) -> dict[str, bytes]:
    path = f"{configuration}/{split}-00000-of-00001.parquet"
    data = f"- config_name: {configuration}\n  data_files:\n  - split: {split}\n    path: {configuration}/{split}-*\n"
    other = "- config_name: other\n  data_files:\n  - split: train\n    path: other/*\n"
    card = f"---\nconfigs:\n{other}{data}---\n"
    return {"README.md": card.encode(), path: write_parquet(rows), "other/train-0.parquet": write_parquet([{"x": 1}])}


def fetch(folder: Path, suite: str, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, since the Hub's client reads its environment when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {**kept, "HF_HOME": str(folder.with_name("hub")), "HF_ENDPOINT": endpoint}
    command = [sys.executable, "-m", "trainer.cli", "benchmarks", str(folder), "--suite", suite, "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)


@pytest.mark.slow
def test_split_of_a_pinned_revision_is_downloaded_and_what_lacks_is_named(tmp_path: Path) -> None:
    assert isinstance(COPA, HubSplit)
    assert COPA.configuration
    files = {(COPA.repository, COPA.revision): build_repository(COPA.configuration, COPA.split, ROWS)}
    with serve_datasets(files) as endpoint:
        done = fetch(tmp_path / "data", "copa,piqa,blimp_sample", endpoint)
    assert done.returncode == 1, done.stderr
    failed = json.loads(done.stdout)["failed"]
    assert list(failed) == ["piqa"]
    assert failed["piqa"].startswith("the Hub's baber/piqa at 142f6d73: ")
    assert "dailytrain benchmarks: piqa could not be fetched: the Hub's baber/piqa" in done.stderr
    content = (tmp_path / "data" / "copa" / "validation.jsonl.gz").read_bytes()
    assert [json.loads(line) for line in gzip.decompress(content).splitlines()] == ROWS
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["copa"], "the sample is in the repository"
    assert fetch(tmp_path / "data", "copa", "http://127.0.0.1:9").returncode == 0, "it is there already"


class RawHandler(Handler):
    files: dict[str, bytes]

    def do_GET(self) -> None:
        content = self.files.get(self.path)
        self.send(200 if content is not None else 404, content or b"")


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Files of GitHub by address path."""
    files: dict[str, bytes] = {}
    with run_server(RawHandler, files=files) as url:
        monkeypatch.setattr(fetch_benchmarks, "RAW_URL", url)
        yield files


def test_git_file_is_compared_with_the_id_of_its_content(raw: dict[str, bytes]) -> None:
    source = GitFile("a/b", "c" * 40, "data/x.jsonl", git_id(b"questions"))
    raw[f"/a/b/{source.commit}/data/x.jsonl"] = b"questions"
    assert fetch_benchmarks.fetch(source) == b"questions"
    raw[f"/a/b/{source.commit}/data/x.jsonl"] = b"answers"
    with pytest.raises(ValueError, match="is not that of git's object"):
        fetch_benchmarks.fetch(source)
    raw.clear()
    with pytest.raises(fetch_benchmarks.httpx.HTTPStatusError, match="404"):
        fetch_benchmarks.fetch(source)


def test_every_file_ships_or_has_a_pinned_source() -> None:
    for name in benchmark_tasks.NAMES:
        for path in benchmark_tasks.list_files(name):
            source = find_source(path)
            assert (source is None) == (benchmark_tasks.find_file(path, None) is not None), path
            if isinstance(source, HubSplit):
                assert re.fullmatch("[0-9a-f]{40}", source.revision)
