"""Templates stay readable: no line is longer than 200 characters."""

from __future__ import annotations

from tests.support.paths import REPOSITORY

MAX_LENGTH = 200


def test_template_lines_are_short() -> None:
    paths = [path for folder in ("templates", "*/templates") for path in REPOSITORY.glob(f"{folder}/**/*.html")]
    names = {path: path.relative_to(REPOSITORY).as_posix() for path in paths}
    long_lines = {
        f"{name}:{number}": len(line)
        for path, name in names.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_LENGTH
    }
    assert long_lines == {}
