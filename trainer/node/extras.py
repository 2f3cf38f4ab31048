"""Optional packages of a node, and the kinds of job that need them."""

from __future__ import annotations

import importlib.util

from trainer.node.job_handlers import SWARM_KINDS

EXTRAS = {"notebook": ("papermill", ("notebook",)), "swarm": ("hivemind", SWARM_KINDS)}
"""Extra -> (a package of it, kinds of job)."""


def list_missing_extras() -> list[str]:
    return [extra for extra, (package, _) in EXTRAS.items() if importlib.util.find_spec(package) is None]


def list_unsupported_kinds() -> set[str]:
    """Return the kinds of job that this installation cannot run."""
    return {kind for extra in list_missing_extras() for kind in EXTRAS[extra][1]}


def describe_missing_extras() -> str:
    """Return for example "takes no notebook and swarm jobs: pip install 'dailytrain[notebook,swarm]'", or ""."""
    missing = list_missing_extras()
    return f"takes no {' and '.join(missing)} jobs: pip install 'dailytrain[{','.join(missing)}]'" if missing else ""
