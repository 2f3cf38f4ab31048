"""Write benchmarks/results/faults.md: what the pages of run, node, pool and sponsor say of each fault of a machine.

    python -m benchmarks.faults

The rows are written by tests/site/test_fault_pages.py, from the pages of a site at which real agents failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "faults.md"
HEAD = """# What the pages say when a machine fails

Written by `python -m benchmarks.faults`: real agents with a broken sandbox work for a site, and these are the words of
its pages after the first failure. The site's release, its self-test and torch are real; the fault is injected into the
processes of the sandbox.

| Fault | Page of the run | Page of the node | List of nodes | Sponsor |
|---|---|---|---|---|
"""


def main() -> int:
    RESULT.write_text(HEAD)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "tests/site/test_fault_pages.py"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "FAULTS_TABLE": str(RESULT)}).returncode


if __name__ == "__main__":
    raise SystemExit(main())
