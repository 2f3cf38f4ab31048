"""The documentation: links, paths and commands that it names, pages generated from the code, and the static site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes

DOCS = REPOSITORY / "docs"
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((REPOSITORY / "benchmarks").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?://|mailto:|#|/)([^)#\s]+)")
FILE = re.compile(
    r"`((?:benchmarks|dailytrain|docker|docs|leaderboard|scheduler|templates|tests|trainer)/[\w./-]+\.\w+)`"
)
COMMAND = re.compile(r"manage\.py (\w+)")


def name_page(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_and_paths_of_page_lead_to_files(page: Path) -> None:
    text = page.read_text()
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    if page.name != "CHANGELOG.md":
        assert [path for path in FILE.findall(text) if not (REPOSITORY / path).exists()] == []


def test_tests_that_docs_name_exist() -> None:
    sources = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test(?:_[a-z0-9]+){3,})`", page.read_text())}
    assert named - set(re.findall(r"def (test_\w+)", sources)) == set()


def test_management_commands_of_docs_exist() -> None:
    from django.core.management import get_commands

    pages = [page for page in PAGES if "results" not in page.parts]  # results are what was printed then
    named = {command for page in pages for command in COMMAND.findall(page.read_text())}
    assert named - get_commands().keys() == set()


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (DOCS / "reference" / f"{name}.md").read_text() == generate.PAGES[name](), "run `make docs-reference`"


def test_drawing_of_run_states_is_up_to_date() -> None:
    assert (DOCS / "reference" / "run-states.svg").read_text() == generate.draw_run_states(), (
        "run `make docs-reference`"
    )


@pytest.mark.slow
@pytest.mark.check
def test_documentation_builds_without_warnings(tmp_path: Path) -> None:
    """MkDocs checks every link, anchor and entry of the navigation; in strict mode a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "docs")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "docs" / "search" / "search_index.json").exists()
    assert "https://" not in " ".join(
        re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)', (tmp_path / "docs" / "index.html").read_text())
    )


def test_first_site_page_agrees_with_the_computed_sizes_of_a_night() -> None:
    lines = (DOCS.parent / "benchmarks" / "results" / "track-sizes.md").read_text().splitlines()
    head, night = (
        line.split(" | ") for line in lines if line.startswith(("| template | GPUs", "| `night-h100` | 1xh100"))
    )
    sizes = {name: float(size.split()[0]) for name, size in zip(head, night, strict=True) if size.endswith(" GB")}
    kept = sizes["final"] + sizes["milestones"]
    page = " ".join((DOCS / "tutorial" / "first-site.md").read_text().split())
    assert f"thirty nights {30 * kept / 1000:.1f} TB (the weights of [{kept:.1f} GB a night]" in page
    assert sizes["scoring"] < float(re.findall(r"Scoring a night needs a GPU of (\d+) GB", page)[0])
