"""Templates are short lines, reachable without a mouse; their tags and filters have one definition each."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter

from django import template
from django.template import defaultfilters, defaulttags, loader_tags

from tests.support.paths import REPOSITORY

TEMPLATES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text()
    for folder in ("templates", "*/templates")
    for path in REPOSITORY.glob(f"{folder}/**/*.html")
}


def load_libraries() -> list[template.Library]:
    """Return every template library of our apps."""
    names = [
        f"{app}.templatetags.{module.name}"
        for app in ("dailytrain", "leaderboard", "scheduler")
        for module in pkgutil.iter_modules([f"{next(iter(importlib.import_module(app).__path__))}/templatetags"])
    ]
    return [importlib.import_module(name).register for name in names]


def test_template_names_are_unique_and_no_builtins() -> None:
    # `{% load a b %}` takes the last definition of a name without a warning.
    builtins = (defaulttags.register, defaultfilters.register, loader_tags.register)
    for kind in ("tags", "filters"):
        found = Counter(name for library in load_libraries() for name in getattr(library, kind))
        assert len(found) > 3, "the libraries were not found"
        assert [name for name, count in found.items() if count > 1] == [], kind
        assert {name for library in builtins for name in getattr(library, kind)} & set(found) == set(), kind


def test_templates_have_no_title_attributes() -> None:
    """A `title` is reachable by mouse only; `parts/help.html` by touch and keyboard, too."""
    titled = re.compile(r"""<[a-z][^>]*\stitle=["']""")
    assert [name for name, text in TEMPLATES.items() if titled.search(text)] == []
