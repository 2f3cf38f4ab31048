"""The wheel declares every package that its modules import."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, files

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY
from trainer.cli import smoke
from trainer.config.presets import RUN_PRESETS
from trainer.config.train_config import DEFAULT_CORPUS
from trainer.data.corpora import find_corpus, python_packages

OPTIONAL = {"triton", "flash_attn"}  # comes with torch's builds for NVIDIA's GPUs; used where it is installed


def list_imported_packages() -> set[str]:
    pattern = re.compile(r"^ *(?:import (\w+)[\w.]*(?: as \w+)?$|from (\w+)[\w.]* import )", re.MULTILINE)
    texts = (path.read_text() for path in (REPOSITORY / "trainer").rglob("*.py"))
    found = {first or second for text in texts for first, second in pattern.findall(text)}
    return found - sys.stdlib_module_names - {"trainer"}


def read_extras() -> dict[str, list[str]]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def test_training_takes_every_torch_that_ci_tests() -> None:
    nightly, makefile = (REPOSITORY / name for name in (".github/workflows/nightly.yml", "Makefile"))
    tested = {version for path in (nightly, makefile) for version in re.findall(r"torch==([\d.]+)", path.read_text())}
    (torch,) = (Requirement(line) for line in read_extras()["training"] if Requirement(line).name == "torch")
    assert min(tested) == "2.11.0"
    assert all(torch.specifier.contains(version) for version in tested)
    assert not torch.specifier.contains("2.14.0")


def test_no_extra_pins_the_packages_whose_text_is_a_corpus() -> None:
    """Each version of torch brings versions of its own."""
    needs = [Requirement(line) for lines in read_extras().values() for line in lines]
    pinned = {need.name for need in needs if any(each.operator == "==" for each in need.specifier)}
    assert pinned
    assert pinned.isdisjoint(python_packages.PACKAGES)


@pytest.mark.parametrize("corpus", [DEFAULT_CORPUS, smoke.CORPUS, RUN_PRESETS["tiny"].values["corpus"]])
def test_default_text_is_part_of_the_package(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_packages, "PACKAGES", {"networkx": "0.0", "sympy": "0.0"})
    assert next(iter(find_corpus(corpus).documents())).text


def has_module(distribution: str, module: str) -> bool:
    try:
        return any(path.parts[0].removesuffix(".py") == module for path in files(distribution) or ())
    except PackageNotFoundError:
        return False


def test_wheel_declares_every_imported_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {canonicalize_name(Requirement(line).name) for lines in lists for line in lines}
    named = {module: canonicalize_name(module) for module in list_imported_packages() - OPTIONAL}
    others = declared - {*named.values()}  # names of packages that differ from their module's
    unnamed = [module for module, name in named.items() if name not in declared]
    assert [module for module in unnamed if not any(has_module(name, module) for name in others)] == []
