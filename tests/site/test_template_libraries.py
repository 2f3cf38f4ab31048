"""Names of template tags and filters across the template libraries of the site."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator

from django import template
from django.template import defaultfilters, defaulttags, loader_tags

APPS = ("dailytrain", "leaderboard", "scheduler")


def libraries() -> Iterator[tuple[str, template.Library]]:
    """Yield (module name, library) of every template library of our apps."""
    for app in APPS:
        root = importlib.import_module(app)
        folders = [f"{folder}/templatetags" for folder in root.__path__]
        for module in pkgutil.iter_modules(folders):
            name = f"{app}.templatetags.{module.name}"
            yield name, importlib.import_module(name).register


def definitions(kind: str) -> dict[str, list[str]]:
    """Return {name of a tag or filter: modules that register it}; `kind` is "tags" or "filters"."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, library in libraries():
        for name in getattr(library, kind):
            found[name].append(module)
    return found


def test_template_names_across_libraries_are_unique() -> None:
    # `{% load a b %}` takes the last definition of a name without a warning.
    for kind in ("tags", "filters"):
        found = definitions(kind)
        assert len(found) > 3, "the libraries were not found"
        assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}, kind


def test_template_names_do_not_shadow_builtins() -> None:
    builtins = (defaulttags.register, defaultfilters.register, loader_tags.register)
    for kind in ("tags", "filters"):
        known = {name for library in builtins for name in getattr(library, kind)}
        assert known & set(definitions(kind)) == set(), kind
