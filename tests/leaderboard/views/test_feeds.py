"""Atom feeds of records and entries, validated by RFC 4287."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from django.test import Client
from django.utils import timezone
from lxml import etree

from leaderboard.models import Entry, Run
from tests.support import boards, scene

pytestmark = pytest.mark.django_db
ATOM = "{http://www.w3.org/2005/Atom}"
DATE_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+\-]\d\d:\d\d)"


def build_element(name: str, content: str) -> str:
    return f'<element name="{name}">{content}</element>'


def build_repetition(content: str) -> str:
    return f"<zeroOrMore>{content}</zeroOrMore>"


def build_option(content: str) -> str:
    return f"<optional>{content}</optional>"


TEXT = (
    build_option('<attribute name="type"><choice><value>text</value><value>html</value></choice></attribute>')
    + "<text/>"
)
ADDRESS = '<data type="anyURI"/>'
DATE = f'<data type="dateTime"><param name="pattern">{DATE_TIME}</param></data>'
LINK = f'<attribute name="href">{ADDRESS}</attribute><optional><attribute name="rel"/></optional><empty/>'
PERSON = f"<interleave>{build_element('name', '<text/>')}{build_option(build_element('uri', ADDRESS))}</interleave>"
ENTRY = (
    build_element("id", ADDRESS)
    + build_element("title", TEXT)
    + build_element("updated", DATE)
    + build_option(build_element("published", DATE))
    + build_option(build_element("summary", TEXT))
    + build_repetition(build_element("link", LINK))
    + build_repetition(build_element("author", PERSON))
)
FEED = (
    build_element("id", ADDRESS)
    + build_element("title", TEXT)
    + build_element("updated", DATE)
    + build_option(build_element("subtitle", TEXT))
    + build_repetition(build_element("link", LINK))
    + f"<oneOrMore>{build_element('author', PERSON)}</oneOrMore>"
    + build_repetition(build_element("entry", f"<interleave>{ENTRY}</interleave>"))
)
SCHEMA = etree.RelaxNG(
    etree.fromstring(
        '<element name="feed" ns="http://www.w3.org/2005/Atom" xmlns="http://relaxng.org/ns/structure/1.0" '
        'datatypeLibrary="http://www.w3.org/2001/XMLSchema-datatypes">'
        '<optional><attribute name="lang" ns="http://www.w3.org/XML/1998/namespace"/></optional>'
        f"<interleave>{FEED}</interleave></element>"
    )
)
"""Schema of the elements that we use, by RFC 4287, sections 4.1 and 4.2."""


def parse_valid_feed(content: bytes) -> ElementTree.Element:
    SCHEMA.assertValid(etree.fromstring(content))
    feed = ElementTree.fromstring(content)  # noqa: S314 (our own)
    names = [entry.findtext(f"{ATOM}id") for entry in feed.iter(f"{ATOM}entry")]
    assert len(set(names)) == len(names)
    assert [link.get("href") for link in feed.findall(f"{ATOM}link") if link.get("rel") == "self"]
    return feed


def list_titles(feed: ElementTree.Element) -> list[str]:
    return [entry.findtext(f"{ATOM}title") or "" for entry in feed.iter(f"{ATOM}entry")]


def create_record_entry() -> Entry:
    _, entries = boards.create_board()
    scene.confirm_record(entries["Better"])
    Entry.objects.filter(pk=entries["Better"].pk).update(title="Better & <b>faster</b>")
    Run.objects.filter(entry=entries["Better"]).update(
        trust=Run.Trust.RECORD, purpose=Run.Purpose.CONFIRMATION, finished_at=timezone.now()
    )
    return Entry.objects.get(pk=entries["Better"].pk)


def test_records_feed_is_valid_with_multiplier_and_interval(client: Client) -> None:
    entry = create_record_entry()
    response = client.get("/feeds/records.atom")
    assert response["Content-Type"] == "application/atom+xml; charset=utf-8"
    feed = parse_valid_feed(response.content)
    (title,) = list_titles(feed)
    assert title.startswith("Better & <b>faster</b>: multiplier 1.")
    (feed_entry,) = feed.iter(f"{ATOM}entry")
    assert f"/entries/{entry.pk}/" in feed_entry.find(f"{ATOM}link").get("href", "")  # type: ignore[union-attr]
    assert "95 % interval" in (feed_entry.findtext(f"{ATOM}summary") or "")


def test_records_feed_keeps_entry_id_after_changes(client: Client) -> None:
    entry = create_record_entry()
    entry_ids = [
        one.findtext(f"{ATOM}id")
        for one in parse_valid_feed(client.get("/feeds/records.atom").content).iter(f"{ATOM}entry")
    ]
    Entry.objects.filter(pk=entry.pk).update(title="Renamed")
    Run.objects.filter(entry=entry).update(revision=99)
    changed_feed = parse_valid_feed(client.get("/feeds/records.atom").content)
    assert [feed_entry.findtext(f"{ATOM}id") for feed_entry in changed_feed.iter(f"{ATOM}entry")] == entry_ids
    assert list_titles(changed_feed)[0].startswith("Renamed")
