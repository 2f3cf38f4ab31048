"""A node runs notebooks part by part, each with the files of the previous part, and uploads regular files only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import LIMITS, Node, build_dataset_pin, build_job, run_job
from tests.support.node_api_server import NodeApiServer
from trainer import protocol
from trainer.node.job_handlers.notebook import TIME_ADVICE

pytestmark = pytest.mark.processes

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


def test_notebook_part_finds_files_of_the_previous_part(running_node: Node) -> None:
    site = running_node.site
    held = run_job(site, build_notebook_job(site, FIRST, dataset=build_dataset_pin(), parts=2))
    assert held.end.outcome == "done", (held.end.reason, held.log)
    assert held.log == "part 1 of 2 baseline\n"
    assert held.end.result == {"version": 1, "cells": 2, "seconds": 0.5, "left": 2, "left_bytes": 41}
    sent = {file.path: site.blobs[file.sha256].decode() for file in held.end.files}
    assert sorted(sent) == ["executed.ipynb", "model/deep/more.txt", "model/weights.bin"]
    assert sent["model/deep/more.txt"] == "dev,manifest.json,tokenizer.json,train", "never the test split"
    left = [file for file in held.end.files if "model" in file.path]
    model = tuple(file.model_copy(update={"path": file.path.removeprefix("model/")}) for file in left)
    held = run_job(site, build_notebook_job(site, SECOND, model=model, part=2, parts=2))
    assert held.log == "part 2 of 2 baseline\n"
    sent = {file.path: site.blobs[file.sha256].decode() for file in held.end.files}
    assert sent["model/weights.bin"] == "one and two"


FAILURES = {
    'raise ValueError("Cell 2 ended with NameError.")': ("model", "Cell 2 ended with NameError.", True),
    "while True: pass": ("model", f"The notebook was ended. It ran longer than 5 seconds. {TIME_ADVICE}", True),
    'for i in range(600): Path(f"model/{i}").touch()': ("model", "It left more than 500 files in model/.", True),
    "raise SystemExit(1)": ("infrastructure", None, True),
    "print('changed')": (
        "infrastructure", "notebooks/idea.ipynb is not the notebook that was approved. Nothing was run.", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", FAILURES)
def test_failed_notebook_has_a_reason_and_uploads_its_cells(running_node: Node, code: str) -> None:
    cause, reason, has_run = FAILURES[code]
    approved = "" if has_run else "print('good')"
    spec = build_notebook_job(running_node.site, code, approved, seconds=0.1 if "while" in code else 30)
    limits = LIMITS.model_copy(update={"wall_seconds": 5})  # enough to start and to write its first file
    finish = run_job(running_node.site, spec.model_copy(update={"limits": limits})).end
    assert (finish.outcome, finish.cause) == ("failed", cause)
    assert reason in (finish.reason, None)
    assert [file.path for file in finish.files] == (["executed.ipynb"] if has_run else [])
