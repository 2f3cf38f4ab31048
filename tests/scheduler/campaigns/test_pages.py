"""The dataset swarm's pages: how far a campaign is, who writes, what comes out, what was refused, how to join."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from scheduler.campaigns.models import Campaign, Contribution, Rephrasing, Volunteer
from scheduler.models import JoinToken
from tests.support import campaign_scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    return campaign_scene.campaign()


def shown(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode().replace("\u00a0", " "))


def test_the_list_says_how_far_each_is(client: Client, campaign: Campaign) -> None:
    campaign_scene.campaign("quiet", name="Not begun", state=Campaign.State.DRAFT)
    page = shown(client, "/campaigns/")
    assert f'href="/campaigns/{campaign.slug}/">Everyday words</a>' in page
    assert "28 of 40 packets" in page
    assert "Not begun" not in page
    assert "dailytrain rephrase join --server http" in page


def test_without_any_it_says_what_will_be_there(client: Client) -> None:
    assert "No campaigns yet" in shown(client, "/campaigns/")


def test_a_campaigns_page_tells_all_of_it_without_script(client: Client, campaign: Campaign) -> None:
    page = shown(client, campaign.get_absolute_url())
    for words in (
        "<strong>26</strong> <span>of 40</span>",
        "Of 40 packets: 26 done, 2 aside, 3 held, 9 waiting",
        "volunteers now, of 3</dt><dd><strong>1</strong>",
        "<strong>81.5 k</strong>",
        "about 12 GB",
        "rephrase join --server http",
        "docker run --rm -it --gpus all",
        campaign_scene.SOURCE[:60],
        campaign_scene.TEXTS["hard"][:60],
        "temperature 0.8, top_p 0.95",
        "4 in another language",
        "odc-by",
    ):
        assert words in page, words
    assert page.index("Volunteer ") > page.index(">ada "), "most tokens first"


def test_nobody_is_named_who_has_not_signed_in_and_nobody_barred(client: Client, campaign: Campaign) -> None:
    page = shown(client, campaign.get_absolute_url())
    assert "a-secret-host-name" not in page
    assert ">echo" not in page


def test_reasons_are_drawn_to_scale(client: Client, campaign: Campaign) -> None:
    page = shown(client, campaign.get_absolute_url())
    widths = [float(width) for width in re.findall(r'<rect width="([\d.]+)%" height="100%"/>', page)]
    assert widths == sorted(widths, reverse=True)
    assert widths[:2] == [100, 92.5], "40 outputs were too short, 37 echoes"


def test_texts_of_strangers_stay_text(client: Client, campaign: Campaign) -> None:
    Rephrasing.objects.update(text="<script>alert(1)</script>")
    page = shown(client, campaign.get_absolute_url())
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


def test_a_draft_is_nobodys_business(client: Client) -> None:
    made = campaign_scene.campaign(state=Campaign.State.DRAFT)
    assert client.get(made.get_absolute_url()).status_code == 404
    assert client.get(f"{made.get_absolute_url()}live.json").status_code == 404
    assert client.get(f"/api/v1/campaigns/{made.slug}").status_code == 404


def test_what_changes_comes_by_itself(client: Client, campaign: Campaign) -> None:
    told = client.get(f"{campaign.get_absolute_url()}live.json").json()
    assert set(told["parts"]) == {"progress", "people", "samples", "refused"}
    assert "of 40" in told["parts"]["progress"].replace("\u00a0", " ")
    assert (told["revision"], told["wait"]) == ("running", 3.0)
    assert client.get("/campaigns/live.json").json()["parts"].keys() == {"shelf"}


def test_as_few_queries_for_a_large_one(client: Client, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    made = campaign_scene.campaign()
    for number in range(30):
        volunteer = Volunteer.objects.create(name=f"volunteer-{number}")
        Contribution.objects.create(campaign=made, volunteer=volunteer, packets=1, accepted=number + 1, tokens=number)
        campaign_scene.campaign(f"another-{number}", name=f"Another {number}")
    with django_assert_max_num_queries(15):
        shown(client, made.get_absolute_url())
    with django_assert_max_num_queries(8):
        shown(client, "/campaigns/")


def test_who_has_signed_in_gets_a_line_of_their_own(client: Client, campaign: Campaign) -> None:
    page = shown(client, campaign.get_absolute_url())
    assert "/line/" not in page
    assert client.post(f"{campaign.get_absolute_url()}line/").status_code == 302
    user = User.objects.create(username="mara")
    client.force_login(user)
    assert "/line/" in shown(client, campaign.get_absolute_url())
    answer = client.post(f"{campaign.get_absolute_url()}line/")
    assert re.search(r"--campaign everyday-words --token [\w.-]{20,}", answer.content.decode())
    assert answer["Cache-Control"].count("no-store") == 1
    token = JoinToken.objects.get(owner=user)
    assert token.for_packets


def test_a_campaign_that_is_over_asks_nobody_to_join(client: Client) -> None:
    made = campaign_scene.campaign(state=Campaign.State.DONE, reason="Every chunk is written or set aside.")
    page = shown(client, made.get_absolute_url())
    assert "docker run" not in page
    assert "Every chunk is written or set aside." in page


def test_the_api_tells_the_same(client: Client, campaign: Campaign) -> None:
    listed: dict[str, Any] = client.get("/api/v1/campaigns").json()
    assert [row["slug"] for row in listed["items"]] == [campaign.slug]
    told = client.get(f"/api/v1/campaigns/{campaign.slug}").json()
    assert (told["progress"]["done"], told["progress"]["packets"], told["model"]) == (26, 40, campaign.model)
    assert told["volunteers"][0]["name"] == "ada"
    assert sum(row["outputs"] for row in told["rejections"]) == sum(campaign_scene.REASONS.values()) + 9 + 37
