from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.dataset_hub import serve_datasets
from tests.support.waits import WAIT_SECONDS
from trainer.data.corpora import open_corpus
from trainer.data.corpora.fineweb_edu import SOURCE
from trainer.errors import CorpusError

pytestmark = pytest.mark.processes

pyarrow = pytest.importorskip("pyarrow")

READ = """
import json, sys
from itertools import islice
from trainer.data.corpora import find_corpus
stream = find_corpus("fineweb-edu").open_stream(json.loads(sys.argv[1]))
ids = [document.id for document in islice(stream, int(sys.argv[2]))]
print(json.dumps([ids, stream.state_dict()]))
"""
SCRIPT = "import sys; from trainer.cli.prepare import main; sys.exit(main(sys.argv[1:]))"


@dataclass
class Hub:
    url: str
    files: dict[str, bytes]
    sent: dict[str, int]
    """Bytes of each file."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    from pyarrow import parquet

    pages = [f"Page {number}. " + " ".join(str(number * word) for word in range(200)) for number in range(200)]
    table = pyarrow.table({"id": [f"<urn:uuid:{n}>" for n in range(200)], "text": pages, "score": [3.5] * 200})
    files: dict[str, bytes] = {}
    for number in range(2):
        buffer = io.BytesIO()
        parquet.write_table(table.slice(100 * number, 100), buffer, row_group_size=10)
        files[f"sample/10BT/00{number}_00000.parquet"] = buffer.getvalue()
    card = "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    files["README.md"] = card.encode()
    sent: dict[str, int] = {}
    with serve_datasets({(SOURCE.repository, SOURCE.revision): files}, sent) as url:
        yield Hub(url, files, sent)


def run_with_hub(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, since the Hub's client reads its environment when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", *command],
        env={**kept, "HF_HOME": str(folder / "hub"), **environment},
        capture_output=True, text=True, timeout=WAIT_SECONDS,
    )  # fmt: skip


def run_prepare(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--corpus", "fineweb-edu", "--limit-bytes", "90kB", "--tokenizer", "bpe:300", "--json", "--quiet"]
    return run_with_hub(folder, [SCRIPT, *arguments, "--out", str(folder / "out")], **environment)


@pytest.mark.slow
def test_pages_are_streamed_at_pinned_revision_up_to_limit(hub: Hub, tmp_path: Path) -> None:
    done = run_prepare(tmp_path, HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    splits = json.loads(done.stdout)["splits"]
    assert sum(split["bytes"] for split in splits.values()) == 90_000
    with (tmp_path / "out" / "test" / "documents.jsonl").open() as lines:
        held = [json.loads(line) for line in lines]
    assert all(re.fullmatch(r"<urn:uuid:\d+>", page["id"]) and page["text"].startswith("Page ") for page in held)


@pytest.mark.slow
def test_stream_continues_after_saved_row_without_earlier_rows(hub: Hub, tmp_path: Path) -> None:
    first = run_with_hub(tmp_path, [READ, "null", "130"], HF_ENDPOINT=hub.url)
    ids, state = json.loads(first.stdout)
    hub.sent.clear()
    rest = run_with_hub(tmp_path, [READ, json.dumps(state), "1000"], HF_ENDPOINT=hub.url)
    assert ids + json.loads(rest.stdout)[0] == [f"<urn:uuid:{number}>" for number in range(200)]
    name = "sample/10BT/000_00000.parquet"
    assert hub.sent[name] < len(hub.files[name])  # no more than its schema


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
@pytest.mark.slow
def test_unreachable_hub_raises_one_line(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run_prepare(tmp_path, **environment)
    assert done.returncode == 2
    assert done.stdout == ""
    message = "dailytrain prepare: fineweb-edu cannot be read from the Hugging Face Hub; is there a network?"
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_unknown_part_is_rejected_with_known_parts() -> None:
    with pytest.raises(CorpusError, match=r"no corpus fineweb-edu:sample-1T; known: .*fineweb-edu:sample-100BT"):
        open_corpus("fineweb-edu:sample-1T")
