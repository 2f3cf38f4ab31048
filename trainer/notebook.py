"""Run all cells of a notebook with papermill, in the sandbox: `python -m trainer.notebook FILE`.

It runs in the current folder. `model/` is kept for the next part of the job and holds what earlier parts left there.
`DAILYTRAIN_DATASET` is the folder of the dataset, if there is one, and `trainer` can be imported. `DAILYTRAIN_PROXY` is
the socket of a proxy, if it may fetch anything (`trainer.node.fetch_proxy`). `executed.ipynb` is
written after each cell, so that a killed notebook can be shown, and at the end `result.json` or `failure.json`.

Not covered: widgets, and kernels of other languages than Python.
"""

from __future__ import annotations

import argparse
import contextlib
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
KERNEL = "python3"  # this interpreter, even if the notebook names another kernel
MAX_ERROR_LENGTH = 300  # characters


class NotebookError(Exception):
    """The notebook failed; the message is a sentence for its author."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code, as `trainer.train` does."""
    parser = argparse.ArgumentParser(prog="python -m trainer.notebook", description="Run a notebook's cells in order.")
    parser.add_argument("notebook", type=Path)
    options = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="jupyter-") as folder:
            return execute_notebook(options.notebook, Path(folder))
    except NotebookError as error:
        errors.write_failure(Path(), "model", str(error))
        return errors.print_error("trainer.notebook", error, errors.ExitCode.MODEL_ERROR)


def execute_notebook(notebook: Path, folder: Path) -> int:
    """Run all cells; raise `NotebookError` if one fails. `folder`: for Jupyter's own files."""
    set_jupyter_folders(folder)
    if proxy := os.environ.get("DAILYTRAIN_PROXY"):
        address = f"http://127.0.0.1:{forward_port(proxy)}"
        os.environ.update(dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), address))
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    logging.basicConfig(format="%(message)s")
    logging.getLogger("papermill").setLevel(logging.INFO)  # the cells' output, for the job's log
    cells = list_code_cells(notebook)
    Path(MODEL).mkdir(exist_ok=True)
    started = time.monotonic()
    try:
        papermill.execute_notebook(
            str(notebook),
            EXECUTED,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            log_output=True,
            config=Config({"KernelManager": {"transport": "ipc"}}),  # no port: any user could connect
        )
    except PapermillExecutionError as error:
        message = errors.to_one_line(error.evalue)[:MAX_ERROR_LENGTH]
        raise NotebookError(f"Cell {error.exec_count} ended with {error.ename}: {message}") from error
    except DeadKernelError as error:
        raise NotebookError("The notebook's process died, most likely out of memory.") from error
    except (nbformat.ValidationError, ValueError, KeyError) as error:
        raise NotebookError(f"The notebook cannot be run: {errors.to_one_line(error)[:MAX_ERROR_LENGTH]}") from error
    result = {"cells": len(cells), "seconds": round(time.monotonic() - started, 3)}
    Path(RESULT).write_text(json.dumps(result))
    return errors.ExitCode.OK


def forward_port(path: str) -> int:
    """Forward a port of this machine to a Unix socket, since programs look for a proxy at a port; return the port."""
    import asyncio
    import threading

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out_reader, out_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pass_on(reader, out_writer), pass_on(out_reader, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port: int = server.sockets[0].getsockname()[1]
    return port


def list_code_cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the code cells that are not empty."""
    import nbformat

    try:
        content = nbformat.read(notebook, as_version=4)
    except Exception as error:
        raise NotebookError(f"This is not a notebook that Jupyter can read: {type(error).__name__}.") from error
    return [cell for cell in content.cells if cell.cell_type == "code" and cell.source.strip()]


def set_jupyter_folders(folder: Path) -> None:
    """Make Jupyter keep its own files in a temporary folder."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        os.environ[name] = str(folder / name.lower())
        (folder / name.lower()).mkdir()
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # silences a warning of the unused debugger


if __name__ == "__main__":
    sys.exit(main())
