"""Thanks: the public list, a node's record for its owner, the badge and the certificate."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler.models import Lease, Node, Sponsor
from scheduler.sponsors import badges
from tests.support.pool import make_job, make_node

pytestmark = pytest.mark.django_db

HOUR = 3600.0
NUMBER = itertools.count(1)


def words(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    main = answer.content.decode().partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).replace("\u00a0", " ").split())


def sponsor(name: str, **fields: Any) -> Sponsor:
    return Sponsor.objects.create(user=User.objects.create_user(name.lower()), name=name, **fields)


def node_of(sponsor: Sponsor, name: str, **fields: Any) -> Node:
    values = {"state": Node.State.ONLINE, "last_seen": timezone.now()}
    return make_node(name, owner=sponsor.user, **{**values, **fields})[0]


def lease(node: Node, hours: float, ago: timedelta = timedelta(hours=1), **fields: Any) -> Lease:
    began: datetime = timezone.now() - ago
    values = {"gpus": 1, "accelerator": "NVIDIA H100 80GB HBM3", "state": Lease.State.FINISHED, "attempt": 1}
    return Lease.objects.create(
        job=fields.pop("job", None) or make_job(), node=node, seconds=hours * HOUR, started_at=began,
        ended_at=began + timedelta(hours=hours), expires_at=began, token_hash=f"{next(NUMBER):064x}",
        **{**values, **fields},
    )  # fmt: skip


def test_empty_sponsor_list_explains_lending(client: Client) -> None:
    assert "Current sponsors appear here" in words(client, "/sponsors/")


def test_sponsor_list_shows_current_and_past_totals(client: Client) -> None:
    ada, bob = sponsor("Ada"), sponsor("Bob", link="https://bob.example")
    lease(node_of(ada, "loco"), 3, timedelta(days=3))
    lease(node_of(ada, "engine"), 1.5)
    old = node_of(bob, "steam", last_seen=timezone.now() - timedelta(days=30))
    lease(old, 200, timedelta(days=40))

    page = words(client, "/sponsors/")

    now, _, before = page.partition(" Before ")
    assert "Ada" in now
    assert "4.5 GPU-hours" in now
    assert "Bob" not in now
    assert "Bob" in before
    assert "200 GPU-hours" in before
    assert 'href="https://bob.example" rel="nofollow ugc noopener"' in " ".join(
        client.get("/sponsors/").content.decode().split()
    )


def test_sponsor_of_drained_or_revoked_node_is_past(client: Client) -> None:
    ada, bob = sponsor("Ada"), sponsor("Bob")
    lease(node_of(ada, "loco", state=Node.State.DRAINING), 1)
    lease(node_of(bob, "steam"), 1)
    Node.objects.filter(name="steam").update(token_hash=None)

    assert "On the train now Current sponsors" in words(client, "/sponsors/")


def test_anonymous_sponsors_are_counted_without_names(client: Client) -> None:
    ada, bob, cleo = sponsor("Ada"), sponsor("Bob"), sponsor("Cleo")
    lease(node_of(ada, "secret-1", shown=False), 2)
    lease(node_of(ada, "secret-2", shown=False), 2)
    lease(node_of(bob, "secret-3", shown=False), 1)
    lease(node_of(cleo, "loco"), 1)
    lease(node_of(cleo, "secret-4", shown=False), 5)

    page = words(client, "/sponsors/")

    assert "And 3 who stay anonymous Together 10.0 GPU-hours" in page
    assert "11.0 GPU-hours" in page, "all of it together"
    assert "Cleo" in page
    for hidden in ("Ada", "Bob", "secret"):
        assert hidden not in page


def test_sponsor_without_hours_is_not_listed(client: Client) -> None:
    node_of(sponsor("Spam & Sons", link="https://spam.example"), "loco")

    assert "Spam" not in client.get("/sponsors/").content.decode()


def test_nodes_without_owner_are_not_listed(client: Client) -> None:
    lease(make_node("this-machine")[0], 5)

    assert "5.0" not in words(client, "/sponsors/")


def test_sponsor_list_takes_constant_queries(client: Client, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(20):
        one = sponsor(f"Sponsor{number}")
        for twice in range(2):
            node = node_of(one, f"node-{number}-{twice}", shown=bool(number % 3))
            lease(node, number + 1)
            lease(node, 1, state=Lease.State.LOST)

    with django_assert_num_queries(4):  # nodes, leases, sponsors; nodes without a sandbox
        client.get("/sponsors/")


# --- a node, for its owner -------------------------------------------------------------------------------------------


def signed_in(sponsor: Sponsor) -> Client:
    client = Client()
    client.force_login(sponsor.user)
    return client


def test_node_page_lists_runs_with_outcomes() -> None:
    ada = sponsor("Ada")
    node = node_of(ada, "loco")
    job = make_job()
    lease(node, 1, timedelta(hours=5), job=job, state=Lease.State.LOST, reason="loco fell silent.")
    lease(node, 2, timedelta(hours=3), job=job, attempt=2)
    lease(node_of(sponsor("Bob"), "steam"), 7)

    page = words(signed_in(ada), f"/sponsors/nodes/{node.pk}/")

    assert "3.0 GPU-hours" in page
    assert f"Idea {job.pk} 1.5000 bits per byte" in page
    assert "3 h in 2 parts" in page
    assert "job served 1 " in page, "one job, however many leases"


def test_node_page_shows_active_job() -> None:
    ada = sponsor("Ada")
    node = node_of(ada, "loco")
    held = lease(node, 0.1, state=Lease.State.ACTIVE, phase="running")
    Lease.objects.filter(pk=held.pk).update(ended_at=None)

    assert f"Idea {held.job_id} running, 6 min so far" in words(signed_in(ada), f"/sponsors/nodes/{node.pk}/")
    live = signed_in(ada).get(f"/sponsors/nodes/{node.pk}/live.json").json()
    assert f"Idea {held.job_id}" in live["parts"]["now"]
    assert live["wait"] == 2


def test_node_page_with_many_jobs_is_paginated(django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    ada = sponsor("Ada")
    node = node_of(ada, "loco")
    jobs = [make_job() for _ in range(60)]
    for number, job in enumerate(jobs):
        lease(node, 0.5, timedelta(hours=100 - number), job=job)
    client = signed_in(ada)

    with django_assert_max_num_queries(16):
        first = words(client, f"/sponsors/nodes/{node.pk}/")
    second = words(client, f"/sponsors/nodes/{node.pk}/?page=2")

    assert f"Idea {jobs[-1].pk} " in first
    assert f"Idea {jobs[0].pk} " not in first
    assert f"Idea {jobs[0].pk} " in second
    assert f"Idea {jobs[-1].pk} " not in second


# --- badge and certificate -------------------------------------------------------------------------------------------


def test_badge_shows_hours_and_fits_text(client: Client) -> None:
    ada = sponsor("Ada")
    lease(node_of(ada, "loco"), 1234)

    answer = client.get(f"/sponsors/{ada.pk}/badge.svg")

    assert answer["Content-Type"] == "image/svg+xml"
    picture = ET.fromstring(answer.content)  # noqa: S314
    assert "1,234 GPU-hours lent" in "".join(picture.itertext())
    rows = picture.findall(".//{http://www.w3.org/2000/svg}text")
    assert float(rows[-1].attrib["x"]) + float(rows[-1].attrib["textLength"]) <= float(picture.attrib["width"])


def test_badge_escapes_name() -> None:
    assert "<script" not in badges.draw_badge("<script>", '"><script>alert(1)</script>')


def test_anonymous_sponsor_has_no_public_badge(client: Client) -> None:
    ada = sponsor("Ada")
    lease(node_of(ada, "loco", shown=False), 5)

    assert client.get(f"/sponsors/{ada.pk}/badge.svg").status_code == 404
    assert client.get(f"/sponsors/{ada.pk}/certificate/").status_code == 404
    assert "5.0 GPU-hours" in words(signed_in(ada), f"/sponsors/{ada.pk}/certificate/")


def test_certificate_hides_hidden_nodes_from_others(client: Client) -> None:
    ada = sponsor("Ada")
    lease(node_of(ada, "loco"), 5)
    lease(node_of(ada, "secret", shown=False), 2)
    address = f"/sponsors/{ada.pk}/certificate/"

    assert "5.0 GPU-hours" in words(client, address)
    assert "7.0 GPU-hours" in words(signed_in(ada), address)


def test_cpu_hours_are_labeled(client: Client) -> None:
    ada = sponsor("Ada")
    lease(node_of(ada, "loco"), 5, gpus=0, accelerator="")

    page = words(client, f"/sponsors/{ada.pk}/certificate/")

    assert "5.0 CPU-hours" in page
    assert "H100-equivalent" not in page
    assert "5 CPU-hours lent" in client.get(f"/sponsors/{ada.pk}/badge.svg").content.decode()


def test_sponsor_name_and_link_can_be_changed() -> None:
    ada = sponsor("Ada")
    node_of(ada, "loco")
    client = signed_in(ada)

    wrong = client.post("/sponsors/mine/", {"sponsor_name": "A. L.", "sponsor_link": "ftp://x"})
    assert wrong.status_code == 200
    assert 'value="ftp://x"' in wrong.content.decode()
    client.post("/sponsors/mine/", {"sponsor_name": "A. L.", "sponsor_link": ""})

    ada.refresh_from_db()
    assert (ada.name, ada.link) == ("A. L.", "")
