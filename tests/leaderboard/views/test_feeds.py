"""Atom feeds by RFC 4287: of records, and of an entry."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from django.test import Client
from django.utils import timezone
from lxml import etree

from leaderboard.models import Entry, Run
from leaderboard.rankings.eligible_runs import RECORD_CONFIRMED
from scheduler.models import Event
from tests.support import boards

pytestmark = pytest.mark.django_db
ATOM = "{http://www.w3.org/2005/Atom}"
MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+\-]\d\d:\d\d)"


def element(name: str, content: str) -> str:
    return f'<element name="{name}">{content}</element>'


def many(content: str) -> str:
    return f"<zeroOrMore>{content}</zeroOrMore>"


def maybe(content: str) -> str:
    return f"<optional>{content}</optional>"


TEXT = maybe('<attribute name="type"><choice><value>text</value><value>html</value></choice></attribute>') + "<text/>"
ADDRESS = '<data type="anyURI"/>'
DATE = f'<data type="dateTime"><param name="pattern">{MOMENT}</param></data>'
LINK = f'<attribute name="href">{ADDRESS}</attribute><optional><attribute name="rel"/></optional><empty/>'
PERSON = f"<interleave>{element('name', '<text/>')}{maybe(element('uri', ADDRESS))}</interleave>"
ENTRY = (
    element("id", ADDRESS) + element("title", TEXT) + element("updated", DATE) + maybe(element("published", DATE))
    + maybe(element("summary", TEXT)) + many(element("link", LINK)) + many(element("author", PERSON))
)  # fmt: skip
FEED = (
    element("id", ADDRESS) + element("title", TEXT) + element("updated", DATE) + maybe(element("subtitle", TEXT))
    + many(element("link", LINK)) + f"<oneOrMore>{element('author', PERSON)}</oneOrMore>"
    + many(element("entry", f"<interleave>{ENTRY}</interleave>"))
)  # fmt: skip
SCHEMA = etree.RelaxNG(
    etree.fromstring(
        '<element name="feed" ns="http://www.w3.org/2005/Atom" xmlns="http://relaxng.org/ns/structure/1.0" '
        'datatypeLibrary="http://www.w3.org/2001/XMLSchema-datatypes">'
        '<optional><attribute name="lang" ns="http://www.w3.org/XML/1998/namespace"/></optional>'
        f"<interleave>{FEED}</interleave></element>"
    )
)
"""What RFC 4287, sections 4.1 and 4.2, asks of the elements that we use."""


def valid(content: bytes) -> ElementTree.Element:
    SCHEMA.assertValid(etree.fromstring(content))
    feed = ElementTree.fromstring(content)  # noqa: S314 (our own)
    names = [entry.findtext(f"{ATOM}id") for entry in feed.iter(f"{ATOM}entry")]
    assert len(set(names)) == len(names)
    assert [link.get("href") for link in feed.findall(f"{ATOM}link") if link.get("rel") == "self"]
    return feed


def titles(feed: ElementTree.Element) -> list[str]:
    return [entry.findtext(f"{ATOM}title") or "" for entry in feed.iter(f"{ATOM}entry")]


def crowned() -> Entry:
    _, entries = boards.board()
    Entry.objects.filter(pk=entries["Better"].pk).update(confirmation=RECORD_CONFIRMED, title="Better & <b>faster</b>")
    Run.objects.filter(entry=entries["Better"]).update(
        trust=Run.Trust.RECORD, purpose=Run.Purpose.CONFIRMATION, finished_at=timezone.now()
    )
    return Entry.objects.get(pk=entries["Better"].pk)


def test_records_are_a_valid_feed_with_multiplier_and_interval(client: Client) -> None:
    entry = crowned()
    answer = client.get("/feeds/records.atom")
    assert answer["Content-Type"] == "application/atom+xml; charset=utf-8"
    feed = valid(answer.content)
    (title,) = titles(feed)
    assert title.startswith("Better & <b>faster</b>: multiplier 1.")
    (found,) = feed.iter(f"{ATOM}entry")
    assert f"/entries/{entry.pk}/" in found.find(f"{ATOM}link").get("href", "")  # type: ignore[union-attr]
    assert "95 % interval" in (found.findtext(f"{ATOM}summary") or "")


def test_the_feed_of_a_new_site_is_empty_and_valid(client: Client) -> None:
    assert titles(valid(client.get("/feeds/records.atom").content)) == []


def test_a_feed_is_304_until_a_record_changes(client: Client) -> None:
    entry = crowned()
    first = client.get("/feeds/records.atom")
    assert client.get("/feeds/records.atom", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Run.objects.filter(entry=entry).update(revision=99)
    assert client.get("/feeds/records.atom", headers={"If-None-Match": first["ETag"]}).status_code == 200


def test_a_record_keeps_its_name_whatever_comes_after(client: Client) -> None:
    entry = crowned()
    name = [one.findtext(f"{ATOM}id") for one in valid(client.get("/feeds/records.atom").content).iter(f"{ATOM}entry")]
    Entry.objects.filter(pk=entry.pk).update(title="Renamed")
    Run.objects.filter(entry=entry).update(revision=99)
    after = valid(client.get("/feeds/records.atom").content)
    assert [one.findtext(f"{ATOM}id") for one in after.iter(f"{ATOM}entry")] == name
    assert titles(after)[0].startswith("Renamed")


def test_an_entrys_feed_tells_what_happened_to_it_and_its_runs(client: Client) -> None:
    entry = crowned()
    run = Run.objects.filter(entry=entry).first()
    assert run
    Event.record("site", entry, "Approved.")
    Event.record("node:cellar", run, "Scored on cellar\x0b: fine.")
    found = titles(valid(client.get(f"/entries/{entry.pk}/feed.atom").content))
    assert found[1] == "Approved."
    assert found[0].startswith(f"Run {run.pk}, seed {run.seed}: Scored on cellar")
