"""A process forked by the tests' server is like one that was executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import select_start_variables

pytestmark = [pytest.mark.processes, pytest.mark.slow]

REPORT = """
import json, os, resource, sys
import trainer
streams = [sys.stdin.read(), sys.stdout.encoding, sys.stderr.line_buffering]
ids = [os.getsid(0) == os.getpid(), len(os.sched_getaffinity(0))]
flags = [sys.dont_write_bytecode, resource.getrlimit(resource.RLIMIT_CORE)[0], sys.argv, sys.orig_argv]
found = [os.getcwd(), dict(os.environ), trainer.__file__, __name__, __file__, sys.path[:2], *streams, *ids, *flags]
found.append(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:4])
print(json.dumps(found))
print("an error", file=sys.stderr)
print("torch" in sys.modules)
"""


def run_report(release: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(release), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["LC_ALL"] = "C.UTF-8"  # otherwise Python sets LC_CTYPE
    return subprocess.run(
        [*prefix, sys.executable, "-s", "-P", "-m", "trainer.report", "--an", "argument"],
        env=environment | select_start_variables(os.environ),
        cwd=release,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


def test_forked_process_has_what_its_command_names(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "report.py").write_text(REPORT)
    executed = run_report(tmp_path, "prlimit", "--core=0:0", "--")
    request.getfixturevalue("forked_python")
    forked = run_report(tmp_path)
    assert (executed.stdout.splitlines()[1], forked.stdout.splitlines()[1]) == ("False", "True"), "torch is loaded"
    assert json.loads(forked.stdout.splitlines()[0]) == json.loads(executed.stdout.splitlines()[0])
    assert forked.stderr == executed.stderr == "an error\n"
