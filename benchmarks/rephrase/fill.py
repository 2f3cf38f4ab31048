"""Fills a database with a campaign, its packets and volunteers with sessions. Prints their leases and tokens."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from benchmarks.rephrase import texts  # noqa: E402
from scheduler import node_tokens, storage  # noqa: E402
from scheduler.campaigns.models import Campaign, RephraseSession, Volunteer  # noqa: E402
from scheduler.models import Job, Lease, Node  # noqa: E402

WAITING_FRACTION = 0.3
INSERT = """
INSERT INTO campaigns_packet
    (campaign_id, row, part, document, first_chunk, chunks, state, replication, missing, attempts, times_assigned)
SELECT %s, i, 0, 'bench:' || i, 0, jsonb_build_array(CASE WHEN i < %s THEN 'done'
        ELSE replace((%s::text[])[1 + i %% %s], '{n}', i::text) END),
    CASE WHEN i < %s THEN 'done' ELSE 'waiting' END, 'none', NULL, 0, 0
FROM generate_series(0, %s) AS i
"""


def add_packets(campaign: Campaign, count: int) -> None:
    done = round(count * (1 - WAITING_FRACTION))
    sources = [texts.build_source(number) for number in range(texts.TEMPLATES)]
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [campaign.pk, done, sources, texts.TEMPLATES, done, count - 1])
        cursor.execute("ANALYZE")


def add_volunteers(campaign: Campaign, count: int) -> list[dict[str, object]]:
    release, sessions = storage.store_bytes(b"a release"), []
    for number in range(count):
        node = Node.objects.create(
            name=f"volunteer-{number}", state=Node.State.ONLINE, packets=Node.Packets.ONLY, token_hash=f"{number:064}"
        )
        Volunteer.objects.create(node=node, name=node.name, state=Volunteer.State.TRUSTED)
        job = Job.objects.create(kind="rephrase", state=Job.State.LEASED, author="rephrase:bench", release=release)
        RephraseSession.objects.create(job=job, campaign=campaign)
        token = node_tokens.generate_token("lease")
        lease = Lease.objects.create(
            job=job,
            node=node,
            attempt=1,
            token_hash=node_tokens.hash_token(token),
            expires_at=timezone.now() + timedelta(hours=3),
        )
        sessions.append({"lease": lease.pk, "token": token})
    return sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, required=True)
    parser.add_argument("--volunteers", type=int, required=True)
    parser.add_argument("--styles", nargs="+", required=True)
    options = parser.parse_args()
    call_command("migrate", verbosity=0)
    campaign = Campaign.objects.create(
        slug="bench", name="Bench", dataset="bench", state=Campaign.State.RUNNING, started_at=timezone.now(),
        styles=options.styles, model="bench", packet_count=options.packets, is_exhausted=True, language="en",
    )  # fmt: skip
    add_packets(campaign, options.packets)
    print(json.dumps(add_volunteers(campaign, options.volunteers)))  # noqa: T201


if __name__ == "__main__":
    main()
