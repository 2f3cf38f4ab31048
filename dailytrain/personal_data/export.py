"""Collects every row about a user."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core import serializers
from django.db import models

from scheduler.campaigns.models import Contribution
from scheduler.models import Event

SECRETS = frozenset({"password", "token_hash", "secret", "data", "health"})
"""Fields that are never exported: they would let another person act as the user."""


def export_person(user: User) -> dict[str, Any]:
    """Return all rows that refer to the user, by model, and what the user did. Without secrets."""
    tables = {"auth.user": describe_rows(User.objects.filter(pk=user.pk))}
    for relation in list_relations():
        rows = relation.related_model._default_manager.filter(**{relation.field.name: user})
        tables[relation.related_model._meta.label_lower] = tables.get(
            relation.related_model._meta.label_lower, []
        ) + describe_rows(rows)
    tables["campaigns.contribution"] = describe_rows(Contribution.objects.filter(volunteer__user=user))
    tables["scheduler.event"] = describe_rows(list_events(user))
    return {"username": user.get_username(), "rows": {label: rows for label, rows in sorted(tables.items()) if rows}}


def list_relations() -> list[models.ManyToOneRel]:
    """Return all foreign keys to a user, hidden ones included: new models need no line here."""
    fields = User._meta.get_fields(include_hidden=True)
    return [field for field in fields if isinstance(field, models.ManyToOneRel)]


def list_events(user: User) -> models.QuerySet[Event]:
    about = models.Q(target_kind="user", target_id=user.pk)
    return Event.objects.filter(about | models.Q(actor=user.get_username()))


def describe_rows(rows: models.QuerySet[Any]) -> list[dict[str, Any]]:
    described = serializers.serialize("python", rows)
    return [
        {"id": row["pk"], **{name: value for name, value in row["fields"].items() if name not in SECRETS}}
        for row in described
    ]
