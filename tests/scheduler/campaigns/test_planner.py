"""The planner of a campaign: cards, hours and size from stated or measured rates."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from scheduler import transitions
from scheduler.campaigns import planner
from scheduler.campaigns.models import Campaign
from scheduler.models import Job
from scheduler.transitions import JobEvent
from tests.support import campaign_scene
from tests.support.pool import create_job

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
    transitions.apply_job_event(job, JobEvent.FINISH, actor="", result={"tokens": 90_000, "seconds": 60.0})
    rates = planner.measure_rates(campaign)
    assert rates.tokens_per_second == 1500
    assert rates.tokens_per_chunk == pytest.approx((61_430 + 20_118) / 299)
    assert rates.accepted_share == pytest.approx(299 / (299 + 60))
    assert planner.estimate_source_tokens(campaign) == 90 * 300


@pytest.mark.parametrize(
    ("results", "rate"),
    [
        ([{"tokens": "many", "seconds": 60.0}, {"tokens": None}, {"tokens": 9000, "seconds": []}], None),
        ([{"tokens": tokens, "seconds": 60.0} for tokens in (1_000, 60_000, 66_000)], 1000),
        ([{"tokens": 60_000, "seconds": 60.0}, {"tokens": 10**15, "seconds": 1e-6}, {"seconds": 60.0}], 1000),
    ],
)
def test_measured_rate_ignores_malformed_and_implausible_sessions(
    client: Client, results: list[dict[str, Any]], rate: float | None
) -> None:
    campaign = campaign_scene.create_campaign()
    for result in results:
        job = create_job(kind="rephrase")
        campaign.sessions.create(job=job)
        transitions.apply_job_event(job, JobEvent.TAKE, actor="")
        transitions.apply_job_event(job, JobEvent.FINISH, actor="", result=result)
    assert planner.measure_rates(campaign).tokens_per_second == rate
    assert client.get(campaign.get_absolute_url()).status_code == 200


def test_campaign_page_without_accepted_text_shows_no_plan(client: Client) -> None:
    campaign = campaign_scene.create_campaign()
    campaign.contributions.update(accepted=0, tokens=0, rejected=9)
    assert planner.measure_rates(campaign).accepted_share == 0
    page = client.get(campaign.get_absolute_url()).content.decode()
    assert "<dt>GPU-hours</dt>" not in page
    assert "All texts were rejected so far" in page
