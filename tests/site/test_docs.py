"""Links of README.md, SECURITY.md and docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PAGES = [REPOSITORY / "README.md", REPOSITORY / "SECURITY.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://|mailto:|#|/)([^)#\s]+)")


def find_links(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in LINK.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_page_lead_to_files(page: Path) -> None:
    assert [link for link in find_links(page) if not link.exists()] == []


def test_operations_page_is_linked_from_readme() -> None:
    assert REPOSITORY / "docs" / "how-to" / "operations.md" in find_links(REPOSITORY / "README.md")
