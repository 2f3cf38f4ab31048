"""The planner on a campaign's page: a form that is part of the address."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from scheduler.campaigns import planner
from scheduler.campaigns.models import Campaign

DEFAULT_SOURCE_TOKENS = 1_000_000_000
MILLION = 1_000_000


class PlannerForm(forms.Form):
    tokens = forms.FloatField(
        label="Source, in millions of tokens",
        min_value=0.001,
        max_value=1e8,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )
    cards = forms.IntegerField(label="Cards", min_value=1, max_value=100_000)
    rate = forms.FloatField(
        label="Tokens per second of one card",
        min_value=0.1,
        max_value=planner.MAX_RATE,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )


def build_planner(campaign: Campaign, query: QueryDict) -> dict[str, Any]:
    """Return form, plan and rates for the page; without a query the plan is of the campaign itself."""
    rates = planner.measure_rates(campaign)
    source = planner.estimate_source_tokens(campaign)
    first = {
        "tokens": round((source or DEFAULT_SOURCE_TOKENS) / MILLION, 3),
        "cards": 1,
        "rate": round(max(rates.tokens_per_second or planner.PUBLISHED_RATES[-1].tokens_per_second, 0.1), 1),
    }
    form = PlannerForm({name: query.get(name, value) for name, value in first.items()}, auto_id="plan-%s")
    plan = None
    if form.is_valid() and rates.accepted_share != 0:
        data = form.cleaned_data
        tokens = max(1, round(data["tokens"] * MILLION))
        plan = planner.plan_campaign(campaign, rates, tokens, data["cards"], data["rate"])
    return {"form": form, "plan": plan, "rates": rates, "published": planner.PUBLISHED_RATES}
