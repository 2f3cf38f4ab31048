"""Pages and public API of the dataset swarm."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries, Settings

from scheduler.campaigns.models import Campaign, Contribution, Rephrasing, Volunteer
from scheduler.models import JoinToken
from tests.support import campaign_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign(settings: Settings) -> Campaign:
    settings.VOLUNTEER_IMAGE = "registry.example.org/volunteer:1"
    return campaign_scene.create_campaign()


def get_page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", response.content.decode().replace("\u00a0", " "))


def test_campaign_page_hides_names_and_banned_volunteers_and_escapes_texts(client: Client, campaign: Campaign) -> None:
    Rephrasing.objects.update(text="<script>alert(1)</script>")
    page = get_page(client, campaign.get_absolute_url())
    for hidden in ("a-secret-host-name", ">echo", "<script>alert"):
        assert hidden not in page
    assert "&lt;script&gt;alert(1)" in page


def test_live_updates_and_api_match_the_page(client: Client, campaign: Campaign) -> None:
    data = client.get(f"{campaign.get_absolute_url()}live.json").json()
    assert set(data["parts"]) == {"progress", "people", "samples", "refused"}
    assert "of 40" in data["parts"]["progress"].replace("\u00a0", " ")
    assert (data["revision"], data["wait"]) == ("running", 3.0)
    assert client.get("/campaigns/live.json").json()["parts"].keys() == {"shelf"}
    listed: dict[str, Any] = client.get("/api/v1/campaigns").json()
    assert [(row["slug"], row["over"], row["packets"]) for row in listed["items"]] == [(campaign.slug, 28, 40)]
    data = client.get(f"/api/v1/campaigns/{campaign.slug}").json()
    assert (data["progress"]["done"], data["progress"]["packets"], data["model"]) == (26, 40, campaign.model)
    assert data["volunteers"][0]["name"] == "ada"
    assert sum(row["outputs"] for row in data["rejections"]) == sum(campaign_scene.REASONS.values()) + 9 + 37
    Campaign.objects.update(state=Campaign.State.DRAFT)
    for path in (campaign.get_absolute_url(), f"{campaign.get_absolute_url()}live.json"):
        assert client.get(path).status_code == 404
    assert client.get(f"/api/v1/campaigns/{campaign.slug}").status_code == 404


def test_large_campaign_page_makes_few_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    campaign = campaign_scene.create_campaign()
    for number in range(30):
        volunteer = Volunteer.objects.create(name=f"volunteer-{number}")
        Contribution.objects.create(
            campaign=campaign, volunteer=volunteer, packets=1, accepted=number + 1, tokens=number
        )
        campaign_scene.create_campaign(f"another-{number}", name=f"Another {number}")
    with django_assert_max_num_queries(15):
        get_page(client, campaign.get_absolute_url())
    with django_assert_max_num_queries(8):
        get_page(client, "/campaigns/")


def test_join_command_for_user_has_token(client: Client, campaign: Campaign) -> None:
    page = get_page(client, campaign.get_absolute_url())
    assert "/line/" not in page
    assert client.post(f"{campaign.get_absolute_url()}line/").status_code == 302
    user = User.objects.create(username="mara")
    client.force_login(user)
    assert "/line/" in get_page(client, campaign.get_absolute_url())
    response = client.post(f"{campaign.get_absolute_url()}line/")
    assert re.search(r"--campaign everyday-words --token [\w.-]{20,}", response.content.decode())
    assert response["Cache-Control"].count("no-store") == 1
    token = JoinToken.objects.get(owner=user)
    assert token.for_packets
