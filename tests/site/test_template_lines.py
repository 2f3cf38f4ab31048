"""Templates stay readable: no line is longer than 200 characters. Help is reachable without a mouse."""

from __future__ import annotations

import re

from tests.support.paths import REPOSITORY

MAX_LENGTH = 200
TEMPLATES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text()
    for folder in ("templates", "*/templates")
    for path in REPOSITORY.glob(f"{folder}/**/*.html")
}


def test_template_lines_are_short() -> None:
    long_lines = {
        f"{name}:{number}": len(line)
        for name, text in TEMPLATES.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > MAX_LENGTH
    }
    assert long_lines == {}


def test_templates_have_no_title_attributes() -> None:
    """A `title` is reachable by mouse only; `parts/help.html` by touch and keyboard, too."""
    titled = re.compile(r"""<[a-z][^>]*\stitle=["']""")
    assert [name for name, text in TEMPLATES.items() if titled.search(text)] == []
