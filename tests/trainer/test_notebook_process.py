"""A notebook runs to its last cell or reports the failed one; the executed cells are on disk in either case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import trainer
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.processes

SOUND = ("from pathlib import Path\nimport trainer", "Path('model/weights').write_text('learned')", "print('done')")


def run(folder: Path, *cells: str, text: str | None = None) -> int:
    """Execute these cells in a separate process, as a node does."""
    notebook = folder / "idea.ipynb"
    content = new_notebook(cells=[new_markdown_cell("# An idea"), *(new_code_cell(cell) for cell in cells)])
    content.metadata["kernelspec"] = {"name": "an-authors-own", "display_name": "Own", "language": "python"}
    notebook.write_text(text if text is not None else nbformat.writes(content))
    environment = {**os.environ, "PYTHONPATH": str(Path(trainer.__file__).parents[1])}
    command = [sys.executable, "-s", "-P", "-m", "trainer.notebook", str(notebook)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, timeout=WAIT_SECONDS, check=False
    ).returncode


def read_executed(folder: Path) -> str:
    return (folder / "executed.ipynb").read_text()


def test_sound_notebook_leaves_model_and_result(tmp_path: Path) -> None:
    assert run(tmp_path, *SOUND, "") == 0
    assert (tmp_path / "model/weights").read_text() == "learned"
    assert json.loads((tmp_path / "result.json").read_text())["cells"] == 3, "an empty cell does not count"
    assert '"done\\n"' in read_executed(tmp_path)


def test_failing_cell_is_named_and_earlier_cells_are_kept(tmp_path: Path) -> None:
    assert run(tmp_path, "print('so far')", "nowhere + 1") == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert failure["fault"] == "model"
    assert failure["reason"] == "Cell 2 ended with NameError: name 'nowhere' is not defined"
    assert "so far" in read_executed(tmp_path)
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_invalid_notebook_and_dead_kernel_are_reported(tmp_path: Path) -> None:
    for cells, text, reason in (
        ((), '{"cells": 7}', "This is not a notebook that Jupyter"),
        (("import os; os._exit(1)",), None, "The notebook's process died"),
    ):
        assert run(tmp_path, *cells, text=text) == 3
        assert json.loads((tmp_path / "failure.json").read_text())["reason"].startswith(reason)
