"""Read a stranger's four files in a process of its own, with limits of CPU time and memory.

`python -m trainer.graph.foreign_files FOLDER` checks and counts them, and prints a JSON object: the `summary` of
`trainer.graph.summary`, or the `problem`. What it accepts can be read again, in the same time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

import trainer
from trainer.errors import CRASH_SIGNALS, MAX_REASON, ProcessLostError, to_one_line
from trainer.graph.files import GraphError

CPU_SECONDS = 120  # an `nn.LSTM` is counted position by position: 10 s for 2 layers and 64 tokens
MEMORY_BYTES = 2 * 2**30  # of shapes and small constants, beside what the imported packages take
MAX_SUMMARY_BYTES = 10**6


def check_foreign_files(folder: Path, seconds: int = CPU_SECONDS) -> dict[str, Any]:
    """Return the summary of the files in a folder. Raise `GraphError` if they are not valid, or exceed the limits.

    `seconds`: of CPU time.
    """
    root = str(Path(trainer.__file__).parents[1])
    command = [sys.executable, "-s", "-P", "-m", "trainer.graph.foreign_files", str(folder.resolve())]
    process = subprocess.run(
        [*command, str(seconds), str(MEMORY_BYTES)],
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    code = process.returncode
    if code == -signal.SIGXCPU:
        raise GraphError(f"the graph takes more than {seconds} s of a core to read: use fewer calls")
    if 128 - code in CRASH_SIGNALS:
        raise GraphError(f"reading the graph crashed with {CRASH_SIGNALS[128 - code]}")
    if code:
        raise ProcessLostError(f"The process that reads a graph ended with exit code {code}.")
    result = json.loads(process.stdout)
    if "problem" in result:
        raise GraphError(result["problem"])
    summary: dict[str, Any] = result["summary"]
    return summary


def main(folder: str, cpu_seconds: str, memory_bytes: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds), int(cpu_seconds) + 5))  # SIGXCPU, then SIGKILL
    # Imported before memory is limited: torch with CUDA takes 550 MB more than without, for which no file is to blame.
    from trainer.graph import build, reading, summary  # noqa: F401

    limit = getattr(psutil.Process().memory_info(), "data", 0) + int(memory_bytes)  # macOS does not count it
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        output = json.dumps({"summary": read_and_count(Path(folder))})
        if len(output) > MAX_SUMMARY_BYTES:
            raise GraphError("the architecture has too many modules to list their costs")
    except MemoryError:
        output = json.dumps({"problem": f"the graph takes more than {int(memory_bytes):,} bytes of memory to read"})
    except Exception as error:  # nothing else than the files is read here
        name = "" if isinstance(error, GraphError) else f"{type(error).__name__}: "
        output = json.dumps({"problem": f"{name}{to_one_line(error)[:MAX_REASON]}"})
    sys.stdout.write(output)


def read_and_count(folder: Path) -> dict[str, Any]:
    from trainer.graph.build import build_function, check_passes
    from trainer.graph.model import read_recipe
    from trainer.graph.reading import read_traced
    from trainer.graph.summary import describe_traced

    traced = read_traced(folder)
    read_recipe(traced)
    check_passes(traced)
    build_function(traced.initialization.graph)
    return describe_traced(traced)


if __name__ == "__main__":
    main(*sys.argv[1:])
