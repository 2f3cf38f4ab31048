"""A half-finished campaign for the tests of pages."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.campaigns.models import (
    Assignment,
    Campaign,
    Contribution,
    Packet,
    RephraseSession,
    Rephrasing,
    Volunteer,
)
from scheduler.models import Blob, Job, Lease, Node

SOURCE = (
    "Beginners BBQ Class Taking Place in Missoula! Do you want to get better at making delicious BBQ? You will have "
    "the opportunity, put this on your calendar now. Thursday, September 22nd join World Class BBQ Champion, Tony "
    "Balay from Lonestar Smoke Rangers. He will be teaching a beginner level class for everyone who wants to get "
    "better with their culinary skills."
)
TEXTS = {
    "easy": "There is a class in Missoula. It is about cooking meat on a fire. A man named Tony shows you how. He is "
    "very good at it. You can come too.",
    "medium": "A barbecue class for beginners will be held in Missoula on Thursday, September 22nd. It is taught by "
    "Tony Balay of the Lonestar Smoke Rangers, a champion, and is open to everyone who wants to cook better.",
    "hard": "Missoula hosts a barbecue seminar for novices, Thursday 22 September, under the tutelage of the champion "
    "Tony Balay (Lonestar Smoke Rangers), for all who would refine their culinary craft.",
    "qa": "Question: Who teaches the class in Missoula?\nAnswer: Tony Balay from the Lonestar Smoke Rangers.\n"
    "Question: For whom is it?\nAnswer: For beginners who want to get better at barbecue.",
}
REASONS = {"too_short": 31, "copied": 12, "meaning": 9, "cut_off": 6, "refusal": 2}
DONE, WAITING, ASIDE, HELD = 26, 9, 2, 3


def create_campaign(slug: str = "everyday-words", **fields: Any) -> Campaign:
    """Create a campaign with a volunteer with an account, one without and a banned one."""
    started_at = timezone.now() - timedelta(hours=3)
    values: dict[str, Any] = {
        "name": "Everyday words",
        "about": "Web text in four styles, for small models.",
        "state": Campaign.State.RUNNING,
        "dataset": "c4/*.jsonl.gz",
        "hub_name": "everyday-words",
        "started_at": started_at,
        "rows_read": 61,
        "packet_count": DONE + WAITING + ASIDE + HELD,
        "chunk_count": 90,
        "dropped_counts": {"language": 4, "short": 12, "paragraphs": 7},
        "files": ["c4/a.jsonl.gz"],
        "is_exhausted": True,
    }
    campaign = Campaign.objects.create(slug=slug, **{**values, **fields})
    states = [*["done"] * DONE, *["waiting"] * WAITING, *["set_aside"] * ASIDE, *["assigned"] * HELD]
    packets = Packet.objects.bulk_create(
        Packet(campaign=campaign, row=row, document=f"c4/a.jsonl.gz:{row}", chunks=[SOURCE], state=state)
        for row, state in enumerate(states)
    )
    ada, anonymous, banned = create_volunteers(slug)
    create_contribution(campaign, ada, accepted=212, tokens=61_430, rejected=14, rejection_reasons=REASONS)
    create_contribution(campaign, anonymous, accepted=87, tokens=20_118, rejected=9, rejection_reasons={"too_short": 9})
    create_contribution(
        campaign, banned, accepted=0, tokens=0, rejected=37, withdrawn=4, rejection_reasons={"echo": 37}
    )
    assignments = create_assignments(campaign, ada, packets)
    create_rephrasings(campaign, packets[0], assignments[0], ada)
    return campaign


def create_volunteers(slug: str) -> tuple[Volunteer, Volunteer, Volunteer]:
    user, _ = User.objects.get_or_create(username="ada")
    ada, _ = Volunteer.objects.get_or_create(user=user, defaults={"name": "ada", "state": Volunteer.State.TRUSTED})
    anonymous = Volunteer.objects.create(name="a-secret-host-name")
    return ada, anonymous, Volunteer.objects.create(name="echo", state=Volunteer.State.BANNED, reason="It echoed.")


def create_contribution(campaign: Campaign, volunteer: Volunteer, **counts: Any) -> None:
    Contribution.objects.create(campaign=campaign, volunteer=volunteer, packets=1 + counts["accepted"] // 8, **counts)


def create_assignments(campaign: Campaign, volunteer: Volunteer, packets: list[Packet]) -> list[Assignment]:
    """Assign the assigned packets to the volunteer, after one that is submitted; return all assignments."""
    release, _ = Blob.objects.get_or_create(sha256="ab" * 32, defaults={"size": 100_000})
    job = Job.objects.create(kind="rephrase", release=release, author="", state=Job.State.LEASED)
    RephraseSession.objects.create(job=job, campaign=campaign)
    node = Node.objects.create(name=f"card-{campaign.slug}", state=Node.State.PAUSED, owner=volunteer.user)
    lease = Lease.objects.create(
        job=job, node=node, attempt=1, token_hash=f"{job.pk:064x}", expires_at=timezone.now() + timedelta(minutes=1)
    )
    assigned = [packet for packet in packets if packet.state == "assigned"]
    common = {"lease": lease, "volunteer": volunteer}
    rows = [Assignment(packet=packets[0], state="submitted", **common)]
    rows += [Assignment(packet=packet, state="active", **common) for packet in assigned]
    return Assignment.objects.bulk_create(rows)


def create_rephrasings(campaign: Campaign, packet: Packet, assignment: Assignment, volunteer: Volunteer) -> None:
    Rephrasing.objects.bulk_create(
        Rephrasing(
            campaign=campaign,
            packet=packet,
            assignment=assignment,
            volunteer=volunteer,
            chunk=0,
            style=style,
            state=Rephrasing.State.ACCEPTED,
            text=text,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            source_sha256=hashlib.sha256(SOURCE.encode()).hexdigest(),
            tokens=len(text.split()),
            created_at=timezone.now() - timedelta(seconds=20),
        )
        for style, text in TEXTS.items()
    )
