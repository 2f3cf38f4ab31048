"""Every public page of the demo parses as HTML without an error, has unique ids and one format of dates."""

from __future__ import annotations

import re
from collections import Counter, deque
from urllib.parse import urldefrag, urlsplit

import pytest
from django.test import Client

from leaderboard import demo

START_PAGES = ("/", "/campaigns/", "/sponsors/", "/accounts/login/", "/accounts/signup/")
LINK = re.compile(r"""<a\b[^>]*?\bhref="([^"]+)\"""")
MIN_PAGES = 20
MAX_VARIANTS = 3
"""Pages of one path that differ in their query, such as sort orders."""


def find_errors(content: bytes) -> list[str]:
    import html5lib

    parser = html5lib.HTMLParser()
    document = parser.parse(content, transport_encoding="utf-8")
    ids = Counter(element.get("id") for element in document.iter() if element.get("id") is not None)
    repeated = [f"id {name!r} is used {count} times" for name, count in ids.items() if count > 1]
    return [*repeated, *(f"line {line}: {code} {values}" for (line, _), code, values in parser.errors)]


def find_links(path: str, content: bytes) -> list[str]:
    """Return the pages of this site to which a page links."""
    links = (urldefrag(link.replace("&amp;", "&")).url for link in LINK.findall(content.decode()))
    return [f"{urlsplit(path).path}{link}" if link.startswith("?") else link for link in links if link[:1] in "/?"]


OTHER_DATE = re.compile(
    r"\b\d{1,2}:\d\d\s?[ap]\.?m\b|\bnoon\b|\bmidnight\b"
    r"|\b\d{1,2} (January|February|March|April|June|July|August|September|October|November|December)\b"
    r"|(?<!\d )\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)[a-z]*\.? \d{1,2}\b",
    re.IGNORECASE,
)


def find_other_dates(content: bytes) -> list[str]:
    """Return dates and times in another format than 22 Nov, 14:05 UTC. Form fields have the browser's format."""
    text = re.sub(r"<(script|style|title|textarea|pre)\b.*?</\1>|<[^>]+>", " ", content.decode(), flags=re.DOTALL)
    return [match.group() for match in OTHER_DATE.finditer(" ".join(text.split()))]


@pytest.mark.slow
def test_public_pages_of_the_demo_are_valid_html_with_one_date_format(client: Client, db: None) -> None:
    demo.seed_demo()
    queue, seen, variants = deque(START_PAGES), set(START_PAGES), dict.fromkeys(START_PAGES, 1)
    errors, pages = {}, 0
    while queue:
        path = queue.popleft()
        response = client.get(path)
        if response.status_code != 200 or not response.headers["Content-Type"].startswith("text/html"):
            assert response.status_code in (200, 302, 304), path
            b"".join(response)  # closes a file to download
            continue
        pages += 1
        if found := find_errors(response.content) + find_other_dates(response.content):
            errors[path] = found
        for link in find_links(path, response.content):
            name = urlsplit(link).path
            if link and link not in seen and variants.get(name, 0) < MAX_VARIANTS and not link.startswith("//"):
                variants[name] = variants.get(name, 0) + 1
                seen.add(link)
                queue.append(link)
    assert errors == {}
    assert pages >= MIN_PAGES
