"""Rows as dicts for the JSON API and downloads."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from django.db import models
from django.forms.models import model_to_dict

T = TypeVar("T")


def build_dict(row: models.Model, kind: type[T], /, **computed: Any) -> T:
    """Return a TypedDict `kind` of the row's columns and of computed values, in the order of its keys."""
    values = {**model_to_dict(row, fields=kind.__annotations__), **computed}
    return cast(T, {name: values[name] for name in kind.__annotations__})
