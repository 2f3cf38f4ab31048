"""A process forked by the tests' server is like one that was executed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer, select_start_variables
from tests.support.paths import REPOSITORY
from tests.support.waits import wait_until

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
WAIT = "import pathlib, time; pathlib.Path('waits').touch(); time.sleep(600)"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a `trainer` of a few modules."""
    folder = tmp_path / "release"
    (folder / "trainer").mkdir(parents=True)
    texts = {"__init__": "", "report": REPORT, "wait": WAIT}
    for name, text in texts.items():
        (folder / "trainer" / f"{name}.py").write_text(text)
    return folder


def run_module(release: Path, name: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(release), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["LC_ALL"] = "C.UTF-8"  # otherwise Python sets LC_CTYPE
    command = [*prefix, sys.executable, "-s", "-P", "-m", f"trainer.{name}", "--an", "argument"]
    return subprocess.run(
        command,
        env=environment | select_start_variables(os.environ),
        cwd=release,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
    )


def test_forked_process_has_what_its_command_names(
    release: Path, fork_server: ForkServer, request: pytest.FixtureRequest
) -> None:
    executed = run_module(release, "report", "prlimit", "--core=0:0", "--")
    request.getfixturevalue("forked_python")
    forked = run_module(release, "report")
    assert (executed.stdout.splitlines()[1], forked.stdout.splitlines()[1]) == ("False", "True"), "torch is loaded"
    assert json.loads(forked.stdout.splitlines()[0]) == json.loads(executed.stdout.splitlines()[0])
    assert forked.stderr == executed.stderr == "an error\n"


NODE = """
import os, subprocess, sys
from pathlib import Path
from tests.support.fork_server import select_start_variables
from trainer.sandbox import ResourceLimits, SandboxSpec, get_driver
limits, folder = ResourceLimits(600, 2**40, 2**30, 8), Path(sys.argv[2])
environment = {"PYTHONPATH": str(folder), **select_start_variables(os.environ)}
spec = SandboxSpec([sys.executable, "-s", "-P", "-m", "trainer.wait"], environment, [], folder, limits)
started = [get_driver(name).start(spec, subprocess.DEVNULL, 2) for name in ("none", "bubblewrap")]
print(*(process.pid for process in started), flush=True)
sys.stdin.read()
"""


def test_node_with_the_servers_environment_forks_the_jobs_of_each_sandbox(
    release: Path, fork_server: ForkServer
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NODE, "node", release], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, **fork_server.environment},
    ) as node:  # fmt: skip
        assert node.stdout
        assert {*map(int, node.stdout.readline().split())} == {*fork_server.list_forked()}
        assert len(fork_server.list_forked()) == 2
        node.kill()
    wait_until(lambda: not fork_server.list_forked())
