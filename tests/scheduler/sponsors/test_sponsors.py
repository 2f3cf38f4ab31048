"""The public sponsor list, a node's history for its owner, the badge and the certificate."""

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
from pytest_django import Settings

from scheduler.job_kinds import PoolTrack
from scheduler.models import Job, Lease, Node, Sponsor
from scheduler.sponsors import badges
from tests.support.pool import create_job, create_node
from trainer import protocol

pytestmark = pytest.mark.django_db

HOUR = 3600.0
NUMBER = itertools.count(1)


def list_wanted_tracks() -> dict[str, PoolTrack]:
    return {"pair": PoolTrack("On two cards", ("2x24gb",)), "cpu": PoolTrack("On a laptop")}


def get_page_text(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, path
    main = response.content.decode().partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).replace(" ", " ").split())


def test_sponsor_page_with_waiting_jobs_shows_wanted_cards(settings: Settings, client: Client) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_sponsors.list_wanted_tracks"
    create_job(track="pair", needs_gpus=2, needs_gpu_memory_bytes=24 * 10**9)
    page = get_page_text(client, "/sponsors/")
    assert "2 GPUs of 24 GB" in page
    assert "On two cards" in page


def create_sponsor(name: str, **fields: Any) -> Sponsor:
    return Sponsor.objects.create(user=User.objects.create_user(name.lower()), name=name, **fields)


def create_sponsor_node(sponsor: Sponsor, name: str, **fields: Any) -> Node:
    values = {"state": Node.State.ONLINE, "last_seen": timezone.now()}
    return create_node(name, owner=sponsor.user, **{**values, **fields})[0]


def create_lease(node: Node, hours: float, ago: timedelta = timedelta(hours=1), **fields: Any) -> Lease:
    began: datetime = timezone.now() - ago
    values = {"gpus": 1, "accelerator": "NVIDIA H100 80GB HBM3", "state": Lease.State.FINISHED, "attempt": 1}
    return Lease.objects.create(
        job=fields.pop("job", None) or create_job(), node=node, seconds=hours * HOUR, started_at=began,
        ended_at=began + timedelta(hours=hours), expires_at=began, token_hash=f"{next(NUMBER):064x}",
        **{**values, **fields},
    )  # fmt: skip


def test_sponsor_of_drained_or_revoked_node_is_past(client: Client) -> None:
    ada, bob = create_sponsor("Ada"), create_sponsor("Bob")
    create_lease(create_sponsor_node(ada, "loco", state=Node.State.DRAINING), 1)
    create_lease(create_sponsor_node(bob, "steam"), 1)
    Node.objects.filter(name="steam").update(token_hash=None)

    assert "Sponsors now Current sponsors" in get_page_text(client, "/sponsors/")


def test_anonymous_sponsors_are_counted_without_names(client: Client) -> None:
    ada, bob, cleo = create_sponsor("Ada"), create_sponsor("Bob"), create_sponsor("Cleo")
    create_lease(create_sponsor_node(ada, "secret-1", shown=False), 2)
    create_lease(create_sponsor_node(ada, "secret-2", shown=False), 2)
    create_lease(create_sponsor_node(bob, "secret-3", shown=False), 1)
    create_lease(create_sponsor_node(cleo, "loco"), 1)
    create_lease(create_sponsor_node(cleo, "secret-4", shown=False), 5)

    page = get_page_text(client, "/sponsors/")

    assert "And 3 who stay anonymous Together 10.0 GPU-hours" in page
    assert "11.0 GPU-hours" in page, "the total includes hidden nodes"
    assert "Cleo" in page
    for hidden in ("Ada", "Bob", "secret"):
        assert hidden not in page


# --- a node, for its owner -------------------------------------------------------------------------------------------


def sign_in_sponsor(sponsor: Sponsor) -> Client:
    client = Client()
    client.force_login(sponsor.user)
    return client


def test_node_page_shows_active_job() -> None:
    ada = create_sponsor("Ada")
    node = create_sponsor_node(ada, "loco")
    lease = create_lease(node, 0.1, state=Lease.State.ACTIVE, phase="running")
    Lease.objects.filter(pk=lease.pk).update(ended_at=None)

    assert f"Idea {lease.job_id} running, 6 min so far" in get_page_text(
        sign_in_sponsor(ada), f"/sponsors/nodes/{node.pk}/"
    )
    live = sign_in_sponsor(ada).get(f"/sponsors/nodes/{node.pk}/live.json").json()
    assert f"Idea {lease.job_id}" in live["parts"]["now"]
    assert live["wait"] == 2


def test_node_page_says_which_waiting_jobs_and_tracks_fit_its_machine(settings: Settings) -> None:
    settings.POOL_TRACKS = "tests.scheduler.sponsors.test_sponsors.list_wanted_tracks"
    ada = create_sponsor("Ada")
    laptop = create_sponsor_node(ada, "laptop", hardware={"memory_bytes": 16 << 30})
    cards = tuple(protocol.Gpu(name="NVIDIA RTX 4090", memory_bytes=24 * 2**30) for _ in range(2))
    pair = create_sponsor_node(ada, "pair", hardware={"gpus": ("NVIDIA RTX 4090",) * 2, "gpu_details": cards})
    for _ in range(2):
        create_job(track="pair", needs_gpus=2, needs_gpu_memory_bytes=24 * 10**9)

    small, large = (get_page_text(sign_in_sponsor(ada), f"/sponsors/nodes/{node.pk}/") for node in (laptop, pair))

    assert (
        "Free. The waiting jobs need a node with 2 GPUs of 24 GB. Large enough to train on the track On a laptop."
        in small
    )
    assert "Free. 2 waiting jobs fit it." in large
    assert "Large enough to train on the tracks On two cards, On a laptop." in large


# --- badge and certificate -------------------------------------------------------------------------------------------


def test_badge_shows_hours_and_fits_text(client: Client) -> None:
    ada = create_sponsor("Ada")
    create_lease(create_sponsor_node(ada, "loco"), 1234)

    response = client.get(f"/sponsors/{ada.pk}/badge.svg")

    assert response["Content-Type"] == "image/svg+xml"
    picture = ET.fromstring(response.content)  # noqa: S314
    assert "1,234 GPU-hours lent" in "".join(picture.itertext())
    rows = picture.findall(".//{http://www.w3.org/2000/svg}text")
    assert float(rows[-1].attrib["x"]) + float(rows[-1].attrib["textLength"]) <= float(picture.attrib["width"])
    assert "<script" not in badges.draw_badge("<script>", '"><script>alert(1)</script>')


def test_badge_and_certificate_hide_hidden_nodes_from_others(client: Client) -> None:
    ada = create_sponsor("Ada")
    create_lease(create_sponsor_node(ada, "secret", shown=False), 2)
    address = f"/sponsors/{ada.pk}/certificate/"
    assert client.get(f"/sponsors/{ada.pk}/badge.svg").status_code == 404
    assert client.get(address).status_code == 404
    assert "2.0 GPU-hours" in get_page_text(sign_in_sponsor(ada), address)
    create_lease(create_sponsor_node(ada, "loco"), 5)
    assert "5.0 GPU-hours" in get_page_text(client, address)
    assert "7.0 GPU-hours" in get_page_text(sign_in_sponsor(ada), address)


def test_certificate_lists_the_results_of_jobs_once_each_and_none_of_failed_ones(client: Client) -> None:
    ada = create_sponsor("Ada")
    node = create_sponsor_node(ada, "loco")
    done, failed = create_job(state=Job.State.DONE), create_job(state=Job.State.FAILED)
    for job in (done, done, failed):
        create_lease(node, 1, job=job)

    page = get_page_text(client, f"/sponsors/{ada.pk}/certificate/")

    assert page.count(f"Idea {done.pk} 1.5000 bits per byte") == 1
    assert f"Idea {failed.pk}" not in page


def test_sponsor_name_and_link_can_be_changed() -> None:
    ada = create_sponsor("Ada")
    create_sponsor_node(ada, "loco")
    client = sign_in_sponsor(ada)

    response = client.post("/sponsors/mine/", {"sponsor_name": "A. L.", "sponsor_link": "ftp://x"})
    assert response.status_code == 200
    assert 'value="ftp://x"' in response.content.decode()
    client.post("/sponsors/mine/", {"sponsor_name": "A. L.", "sponsor_link": ""})

    ada.refresh_from_db()
    assert (ada.name, ada.link) == ("A. L.", "")
