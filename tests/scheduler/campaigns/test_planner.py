"""The planner of a campaign: cards, hours and size from stated or measured rates."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from scheduler.campaigns import planner
from scheduler.campaigns.messages import build_order
from scheduler.campaigns.models import Campaign
from scheduler.models import Job
from tests.scheduler.campaigns.test_pages import get_page
from tests.support import campaign_scene

pytestmark = pytest.mark.django_db
UNMEASURED = planner.MeasuredRates(None, None, None, None)


def test_plan_multiplies_chunks_styles_and_rejections() -> None:
    campaign = Campaign(styles=["faq", "math"], chunk_tokens=300)
    plan = planner.plan_campaign(campaign, UNMEASURED, 3_000_000, cards=10, tokens_per_second=1000)
    assert (plan.chunks, plan.rows, plan.tokens, plan.generated_tokens) == (10_000, 20_000, 6_000_000, 6_000_000)
    assert plan.card_hours == pytest.approx(6000 / 3600)
    assert plan.hours == pytest.approx(600 / 3600)
    assert plan.dataset_bytes is None
    measured = planner.MeasuredRates(1000, 150, 0.75, 2000)
    plan = planner.plan_campaign(campaign, measured, 3_000_000, cards=1, tokens_per_second=1000)
    assert (plan.tokens, plan.generated_tokens, plan.dataset_bytes) == (3_000_000, 4_000_000, 40_000_000)


def test_measured_rates_are_computed_from_sessions_and_contributions() -> None:
    campaign = campaign_scene.create_campaign()
    job = Job.objects.get(rephrase_session__campaign=campaign)
    assert planner.measure_rates(campaign).tokens_per_second is None
    Job.objects.filter(pk=job.pk).update(state=Job.State.DONE, result={"tokens": 90_000, "seconds": 60.0})
    rates = planner.measure_rates(campaign)
    assert rates.tokens_per_second == 1500
    assert rates.tokens_per_chunk == pytest.approx((61_430 + 20_118) / 299)
    assert rates.accepted_share == pytest.approx(299 / (299 + 60))
    assert planner.estimate_source_tokens(campaign) == 90 * 300


def test_measured_rate_ignores_session_with_implausible_speed() -> None:
    campaign = campaign_scene.create_campaign()
    job = Job.objects.get(rephrase_session__campaign=campaign)
    results = [{"tokens": 60_000, "seconds": 60.0}, {"tokens": 66_000, "seconds": 60.0}]
    results += [{"tokens": 1_000, "seconds": 60.0}, {"tokens": 10**15, "seconds": 1e-6}]
    for result in results:
        job.pk, job.state, job.result = None, Job.State.DONE, result
        job.save()
        campaign.sessions.create(job=job)
    assert planner.measure_rates(campaign).tokens_per_second == 1000


@pytest.mark.parametrize(
    "result", [{"tokens": "many", "seconds": 60.0}, {"tokens": None}, {"tokens": 9000, "seconds": []}]
)
def test_campaign_page_ignores_session_with_malformed_result(client: Client, result: dict[str, Any]) -> None:
    campaign = campaign_scene.create_campaign()
    Job.objects.filter(rephrase_session__campaign=campaign).update(state=Job.State.DONE, result=result)
    assert planner.measure_rates(campaign).tokens_per_second is None
    get_page(client, campaign.get_absolute_url())


def test_campaign_page_without_accepted_text_shows_no_plan(client: Client) -> None:
    campaign = campaign_scene.create_campaign()
    campaign.contributions.update(accepted=0, tokens=0, rejected=9)
    assert planner.measure_rates(campaign).accepted_share == 0
    page = get_page(client, campaign.get_absolute_url())
    assert "<dt>GPU-hours</dt>" not in page
    assert "All texts were rejected so far" in page


@pytest.mark.parametrize(("gigabytes", "expected"), [(0, None), (12.5, 12.5)])
def test_campaign_order_has_required_memory(gigabytes: float, expected: float | None) -> None:
    assert build_order(Campaign(slug="c", needs_gigabytes=gigabytes)).needs_gigabytes == expected
