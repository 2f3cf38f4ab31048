"""robots.txt, the sitemap, and the page of acknowledgements."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.robotparser import RobotFileParser

import pytest
from django.conf import settings as site_settings
from django.test import Client, RequestFactory

from dailytrain.sitemaps import SITEMAPS
from dailytrain.views import documentation
from tests.support import scene

pytestmark = pytest.mark.django_db
LOCATION = "{http://www.sitemaps.org/schemas/sitemap/0.9}loc"


def read_locations(client: Client, address: str) -> list[str]:
    found = ET.fromstring(client.get(address).content)  # noqa: S314 (our own page)
    return [str(node.text).removeprefix("http://testserver") for node in found.iter(LOCATION)]


def test_robots_file_names_sitemap_and_hides_admin(client: Client) -> None:
    response = client.get("/robots.txt")
    assert response["Content-Type"].startswith("text/plain")
    robots = RobotFileParser()
    robots.parse(response.content.decode().splitlines())
    assert robots.site_maps() == [f"{site_settings.SITE_URL}/sitemap.xml"]
    assert not robots.can_fetch("*", "/admin/")
    assert robots.can_fetch("*", "/runs/1/")


def test_sitemap_lists_pages_that_exist(client: Client) -> None:
    night = scene.create_night_board()
    sections = read_locations(client, "/sitemap.xml")
    assert len(sections) == len(SITEMAPS)
    pages = [page for section in sections for page in read_locations(client, section)]
    assert {"/", "/acknowledgements/", *(night[name].get_absolute_url() for name in ("best", "entry", "campaign"))} <= {
        *pages
    }
    assert [page for page in pages if client.get(page).status_code != 200] == []


@pytest.mark.parametrize("page", ["about", "acknowledgements"])
def test_post_to_a_page_without_forms_is_refused(client: Client, page: str) -> None:
    assert client.post(f"/{page}/").status_code == 405


def test_acknowledgements_page_names_the_projects(client: Client) -> None:
    text = client.get("/acknowledgements/").content.decode()
    for project in ("modded-nanogpt", "nanochat", "RWKV", "litgpt", "lm-eval", "hivemind", "SWARM", "Maini et al."):
        assert project in text
    assert re.search(r"<h1>Acknowledgements</h1>", text)


def test_footer_of_page_links_to_documentation_and_acknowledgements(client: Client) -> None:
    text = client.get("/about/").content.decode()
    assert 'href="/acknowledgements/"' in text
    assert 'href="/docs/"' in text


def test_documentation_without_build_redirects_to_repository(settings: Any) -> None:
    request = RequestFactory().get("/docs/")
    settings.MAIN_REPOSITORY = "https://github.com/trains/daily.git"
    assert documentation(request)["Location"] == "https://github.com/trains/daily/tree/main/docs"
    settings.MAIN_REPOSITORY = "/srv/daily"
    assert documentation(request)["Location"] == "/about/"


def test_built_documentation_is_served_by_whitenoise(tmp_path: Path, settings: Any) -> None:
    (tmp_path / "docs" / "tutorial").mkdir(parents=True)
    (tmp_path / "docs" / "tutorial" / "index.html").write_text("<h1>Tutorial</h1>")
    settings.WHITENOISE_ROOT = str(tmp_path)
    client = Client()
    response = client.get("/docs/tutorial/")
    assert b"".join(response) == b"<h1>Tutorial</h1>"
    assert client.get("/docs/tutorial/index.html").status_code == 302
