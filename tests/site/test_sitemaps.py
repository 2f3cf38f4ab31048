"""robots.txt, llms.txt, the sitemap, and the page of acknowledgements."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from django.conf import settings as site_settings
from django.test import Client

from dailytrain.sitemaps import SITEMAPS
from tests.support import scene

pytestmark = pytest.mark.django_db
LOCATION = "{http://www.sitemaps.org/schemas/sitemap/0.9}loc"


def read_locations(client: Client, address: str) -> list[str]:
    found = ET.fromstring(client.get(address).content)  # noqa: S314 (our own page)
    return [str(node.text).removeprefix("http://testserver") for node in found.iter(LOCATION)]


def test_llms_file_names_addresses_that_answer(client: Client) -> None:
    slug = scene.create_night_board()["track"].slug
    response = client.get("/llms.txt")
    text = response.content.decode().replace("SLUG", slug)
    pages = re.findall(r"/docs/([\w/-]+)/", text)
    assert len(pages) > 1
    assert all(Path(site_settings.BASE_DIR, "docs", f"{page}.md").is_file() for page in pages), "built by `make docs`"
    assert response["Content-Type"].startswith("text/plain")
    assert f"- {slug}: " in text
    found = re.findall(rf"{re.escape(site_settings.SITE_URL)}(/[^\s:;,)]*)", text.replace("aten::", ""))
    addresses = [address for address in found if not re.search(r"ID|HASH|runs$|me$|tokens|^/docs/", address)]
    assert len(addresses) > 5
    assert {address: client.get(address).status_code for address in addresses} == dict.fromkeys(addresses, 200)


def test_sitemap_lists_pages_that_exist(client: Client) -> None:
    night = scene.create_night_board()
    sections = read_locations(client, "/sitemap.xml")
    assert len(sections) == len(SITEMAPS)
    pages = {section: read_locations(client, section) for section in sections}
    expected = {"/", "/acknowledgements/", *(night[name].get_absolute_url() for name in ("best", "entry", "campaign"))}
    assert expected <= {page for section in pages.values() for page in section}
    assert [section[0] for section in pages.values() if section and client.get(section[0]).status_code != 200] == []
