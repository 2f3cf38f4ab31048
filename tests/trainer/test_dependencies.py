"""The wheel declares every package that its modules import."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY

OF_TORCH = {"triton"}  # comes with torch's builds for NVIDIA's GPUs, and its absence is handled


def list_imported_packages() -> set[str]:
    found: set[str] = set()
    for path in (REPOSITORY / "trainer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"trainer"}


def test_wheel_declares_every_imported_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(line).name) for lines in lists for line in lines}
    names = packages_distributions()
    imported = {
        module: {canonicalize_name(name) for name in names.get(module, [module])} for module in list_imported_packages()
    }
    missing = {module for module, packages in imported.items() if not packages & declared}
    assert missing - OF_TORCH == set()
