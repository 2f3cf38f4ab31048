"""Rulings: public decisions of maintainers about entries."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.entries import Entry
from leaderboard.models.graphs import TracedGraph
from leaderboard.models.seasons import CAPS, Season


class RulingDict(TypedDict):
    id: int
    text: str
    effect: str
    scope: str
    family: int | None
    operator: str
    cap: str
    cap_value: float | None
    created_at: str
    revoked_at: str | None  # null: in force
    entries: list[int]  # that do not rank by it now


class RulingQuerySet(models.QuerySet["Ruling"]):
    def in_force(self) -> RulingQuerySet:
        return self.filter(revoked_at=None)


class Ruling(models.Model):
    """A decision about past and coming entries. It never changes, and can be revoked."""

    class Effect(models.TextChoices):
        UNRANKED = "unranked", "They do not rank."
        CAP = "cap", "The cap holds for entries from now on."

    class Scope(models.TextChoices):
        ENTRIES = "entries", "the listed entries"
        FAMILY = "family", "a family"
        OPERATOR = "operator", "graphs with an operator or a pattern"
        CAP = "cap", "graphs above a cap"

    text = models.TextField(help_text="The decision and its reason. It is public.")
    effect = models.CharField(max_length=8, choices=Effect.choices, default=Effect.UNRANKED)
    scope = models.CharField("which entries", max_length=8, choices=Scope.choices, default=Scope.ENTRIES)
    listed = models.ManyToManyField(Entry, blank=True, related_name="+", verbose_name="entries")
    family = models.ForeignKey(
        Entry, null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="Its first entry."
    )
    operator = models.CharField(
        max_length=120, blank=True, help_text="Such as `aten::cumsum`, or a pattern of `dailytrain graph --json`."
    )
    cap = models.CharField(max_length=16, blank=True, choices=[(name, name) for name in CAPS])
    cap_value = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    revoked_at = models.DateTimeField(null=True, editable=False)

    objects = RulingQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(
                condition=(
                    models.Q(scope="entries", family=None, operator="", cap="", cap_value=None)
                    | models.Q(scope="family", family__isnull=False, operator="", cap="", cap_value=None)
                    | models.Q(scope="operator", family=None, cap="", cap_value=None) & ~models.Q(operator="")
                    | models.Q(scope="cap", family=None, operator="", cap__in=CAPS, cap_value__isnull=False)
                ),
                name="ruling_has_the_fields_of_its_scope",
                violation_error_message="Fill in exactly the fields of the chosen entries.",
            ),
            models.CheckConstraint(
                condition=models.Q(effect="unranked") | models.Q(effect="cap", scope="cap"),
                name="new_cap_names_a_cap",
                violation_error_message="A new cap needs a cap and its value.",
            ),
        ]

    def __str__(self) -> str:
        return f"ruling {self.pk}"

    def get_absolute_url(self) -> str:
        return f"{reverse('rulings')}#ruling-{self.pk}"

    def find_entries(self) -> models.QuerySet[Entry]:
        """Return the entries in its scope, since then for a new cap; never main or a baseline."""
        entries = Entry.objects.exclude(kind=Entry.Kind.MAIN)
        if self.effect == self.Effect.CAP:
            entries = entries.filter(created_at__gte=self.created_at)
        entries = entries.exclude(pk__in=Season.objects.exclude(baseline=None).values("baseline"))
        if self.scope == self.Scope.ENTRIES:
            return entries.filter(pk__in=self.listed.values("pk"))
        if self.scope == self.Scope.FAMILY:
            return entries.filter(family=self.family_id)
        if self.scope == self.Scope.OPERATOR:
            return entries.filter(pk__in=TracedGraph.objects.with_pattern(self.operator).values("entry"))
        if self.cap == "source_bytes":
            return entries.filter(source_bytes__gt=self.cap_value)
        is_relative = self.cap == "scoring_flops"
        name = "scoring_flops_per_token" if is_relative else self.cap
        unit = read_number(name, "baseline_graph__summary") if is_relative else models.Value(1.0)
        above = TracedGraph.objects.annotate(own=read_number(name)).filter(own__gt=unit * models.Value(self.cap_value))
        return entries.filter(pk__in=above.values("entry"))

    def to_dict(self) -> RulingDict:
        """Return the row; prefetch `entries`."""
        return build_dict(
            self,
            RulingDict,
            id=self.pk,
            family=self.family_id,
            created_at=self.created_at.isoformat(),
            revoked_at=self.revoked_at.isoformat() if self.revoked_at else None,
            entries=sorted(entry.pk for entry in self.entries.all()),
        )


def read_number(name: str, summary: str = "summary") -> Cast:
    """Return the SQL of a number of a graph's summary."""
    return Cast(KeyTextTransform(name, summary), models.FloatField())
