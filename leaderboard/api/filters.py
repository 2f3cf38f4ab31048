"""Filters of the API's lists."""

from __future__ import annotations

from django.db.models import TextChoices
from ninja.errors import HttpError


def parse_states(value: str, states: type[TextChoices]) -> list[str]:
    """Return the states that a comma-separated list names; an unknown one is a 422."""
    names = value.split(",") if value else []
    if unknown := [name for name in names if name not in states.values]:
        raise HttpError(422, f"state: there is no state {unknown[0]!r}. States: {', '.join(states.values)}.")
    return names
