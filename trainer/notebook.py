"""Run one notebook from its first cell to its last, by papermill, in the sandbox: `python -m trainer.notebook FILE`.

It runs in the current folder. What it leaves there in `model/` is kept and handed to the next part; what an earlier
part left is there already. `DAILYTRAIN_DATASET` names the folder of the dataset, where there is one, and `trainer` can
be imported. `executed.ipynb` is written after each cell, so that something can be shown of one that was killed, and at
the end `result.json`, or `failure.json`.

Not covered: widgets, and kernels of other languages than Python.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer import errors

EXECUTED, RESULT, MODEL = "executed.ipynb", "result.json", "model"
KERNEL = "python3"  # the interpreter that runs this, whatever the notebook's author called his
LONGEST = 300  # characters of what an error says


class NotebookError(Exception):
    """The notebook went wrong; the message is a sentence for its author."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code, as `trainer.train` does."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.notebook", description="Run a notebook's cells in their order."
    )
    parser.add_argument("notebook", type=Path)
    options = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="jupyter-") as folder:
            return execute(options.notebook, Path(folder))
    except NotebookError as error:
        errors.write_failure(Path(), "model", str(error))
        sys.stderr.write(f"trainer.notebook: {error}\n")
        return errors.ExitCode.MODEL_ERROR


def execute(notebook: Path, folder: Path) -> int:
    """Run it; raise `NotebookError` where it goes wrong. `folder`: for Jupyter's own files."""
    settle(folder)
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    logging.basicConfig(format="%(message)s")
    logging.getLogger("papermill").setLevel(logging.INFO)  # what the cells print, for the log of the job
    cells = code_cells(notebook)
    Path(MODEL).mkdir(exist_ok=True)
    began = time.monotonic()
    try:
        papermill.execute_notebook(
            str(notebook),
            EXECUTED,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            log_output=True,
            config=Config({"KernelManager": {"transport": "ipc"}}),  # no port, which anybody on the machine could open
        )
    except PapermillExecutionError as error:
        said = " ".join(str(error.evalue).split())[:LONGEST]
        raise NotebookError(f"Cell {error.exec_count} ended with {error.ename}: {said}") from error
    except DeadKernelError as error:
        raise NotebookError("The notebook's process died, most likely for want of memory.") from error
    except (nbformat.ValidationError, ValueError, KeyError) as error:
        raise NotebookError(f"The notebook cannot be run: {' '.join(str(error).split())[:LONGEST]}") from error
    result = {"cells": len(cells), "seconds": round(time.monotonic() - began, 3)}
    Path(RESULT).write_text(json.dumps(result))
    return errors.ExitCode.OK


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells that have something to run."""
    import nbformat

    try:
        content = nbformat.read(notebook, as_version=4)
    except Exception as error:
        raise NotebookError(f"This is no notebook that Jupyter reads: {type(error).__name__}.") from error
    return [cell for cell in content.cells if cell.cell_type == "code" and cell.source.strip()]


def settle(folder: Path) -> None:
    """Let Jupyter keep its own files where nothing of them stays."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        os.environ[name] = str(folder / name.lower())
        (folder / name.lower()).mkdir()
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a debugger that nobody uses would warn of itself


if __name__ == "__main__":
    sys.exit(main())
