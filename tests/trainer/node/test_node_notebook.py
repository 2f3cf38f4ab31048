"""A node runs notebooks part by part, each with the files of the previous part, and uploads regular files only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import LIMITS, Node, build_dataset_pin, build_job, wait_until_finished
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from trainer import protocol
from trainer.node.job_handlers.notebook import TIME_ADVICE

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]

FIRST = """
Path("model/deep").mkdir()
Path("model/weights.bin").write_text("one")
Path("model/deep/more.txt").write_text(",".join(sorted(os.listdir(os.environ["DAILYTRAIN_DATASET"]))))
os.symlink("/etc/passwd", "model/passwd")
os.mkfifo("model/pipe")
"""
SECOND = 'Path("model/weights.bin").write_text(Path("model/weights.bin").read_text() + " and two")'


NOTEBOOK_PATH = "notebooks/idea.ipynb"


def build_notebook_job(site: NodeApiServer, code: str, approved: str = "", **fields: Any) -> protocol.JobSpec:
    """Return a job whose entry has this notebook. `approved`: code of the approved one, if it differs."""
    notebook = site.store_blob((approved or code).encode(), NOTEBOOK_PATH)
    order = protocol.NotebookOrder(notebook=notebook, **{"seconds": 30, **fields})
    entry = site.store_blob(stdlib_release.build_tar({NOTEBOOK_PATH: code}), "entry.tar")
    return build_job(site, order, entry=False).model_copy(update={"entry": entry})


def queue_notebook(site: NodeApiServer, code: str, **fields: Any) -> int:
    return site.queue_job(build_notebook_job(site, code, **fields))


def run_notebook(site: NodeApiServer, lease: int) -> tuple[LeaseRecord, protocol.FinishLease]:
    held = wait_until_finished(site, lease)
    return held, held.finish


def test_notebook_part_finds_files_of_the_previous_part(site: NodeApiServer, node: Node) -> None:
    lease = queue_notebook(site, FIRST, dataset=build_dataset_pin(), parts=2)
    node.start()
    held, first = run_notebook(site, lease)
    assert first.outcome == "done", (first.reason, held.log)
    assert held.log == "part 1 of 2 baseline\n"
    assert first.result == {"version": 1, "cells": 2, "seconds": 0.5, "left": 2, "left_bytes": 41}
    sent = {file.path: site.blobs[file.sha256].decode() for file in first.files}
    assert sorted(sent) == ["executed.ipynb", "model/deep/more.txt", "model/weights.bin"]
    assert sent["model/deep/more.txt"] == "dev,manifest.json,tokenizer.json,train", "never the test split"
    model = tuple(
        file.model_copy(update={"path": file.path.removeprefix("model/")})
        for file in first.files
        if "model" in file.path
    )
    held, second = run_notebook(site, queue_notebook(site, SECOND, model=model, part=2, parts=2))
    assert held.log == "part 2 of 2 baseline\n"
    sent = {file.path: site.blobs[file.sha256].decode() for file in second.files}
    assert sent["model/weights.bin"] == "one and two"


def test_failed_notebook_uploads_its_executed_cells(site: NodeApiServer, node: Node) -> None:
    limits = LIMITS.model_copy(update={"wall_seconds": 5})  # enough to start and to write its first file
    leases = [
        queue_notebook(site, 'raise ValueError("Cell 2 ended with NameError.")'),
        site.queue_job(build_notebook_job(site, "while True: pass", seconds=0.1).model_copy(update={"limits": limits})),
        queue_notebook(site, 'for i in range(600): Path(f"model/{i}").touch()'),
        queue_notebook(site, "raise SystemExit(1)"),
        queue_notebook(site, "print('sly')", approved="print('good')"),
    ]
    node.start()
    wrong, slow, many, broken, other = (run_notebook(site, lease)[1] for lease in leases)
    assert (wrong.outcome, wrong.cause, wrong.reason) == ("failed", "model", "Cell 2 ended with NameError.")
    assert [file.path for file in wrong.files] == ["executed.ipynb"]
    assert (slow.cause, slow.reason) == (
        "model",
        f"The notebook was ended. It ran longer than 5 seconds. {TIME_ADVICE}",
    )
    assert [file.path for file in slow.files] == ["executed.ipynb"]
    assert many.reason == "It left more than 500 files in model/."
    assert broken.cause == "infrastructure"
    assert other.reason == "notebooks/idea.ipynb is not the notebook that was approved. Nothing was run."
