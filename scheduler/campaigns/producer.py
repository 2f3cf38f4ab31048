"""Creates a campaign's packets from its source, each exactly once, while few are waiting.

A conditional UPDATE moves the cursor in the transaction that creates the packets. An interrupted producer loses and
repeats nothing, and of two concurrent producers one wins. On one machine only one works on a campaign.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from scheduler import storage
from scheduler.campaigns import quality, source_filters, sources
from scheduler.campaigns.error_isolation import sum_over_campaigns
from scheduler.campaigns.models import Campaign, Packet, Paragraph
from scheduler.campaigns.source_filters import Document
from scheduler.campaigns.sources import SourceError, SourceRow
from trainer.rephrase import chunks

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 100
CHARACTERS_PER_BATCH = 2_000_000
"""Limit of a batch, without its last document. A crash repeats the work of one batch."""
ROWS_PER_QUERY = 500
MAX_CHUNK_CHARACTERS = 40_000
"""Limit of `protocol.Chunk`."""


def produce_packets() -> int:
    """Fill all running campaigns; return how many packets were created."""
    return sum_over_campaigns(produce_campaign, Campaign.objects.running().filter(is_exhausted=False))


def produce_campaign(pk: int) -> int:
    """Fill a campaign unless another process does; return how many packets were created."""
    with claim_campaign(pk) as is_claimed:
        return refill_campaign(Campaign.objects.select_related("quality_model").get(pk=pk)) if is_claimed else 0


@contextmanager
def claim_campaign(pk: int) -> Iterator[bool]:
    """Yield whether no other process on this machine produces the campaign's packets: a download takes minutes."""
    path = Path(settings.HOME) / "sources" / f"{pk}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def refill_campaign(campaign: Campaign) -> int:
    """Create packets up to the high mark if fewer than the low mark wait; return how many."""
    waiting = campaign.packets.filter(state=Packet.State.WAITING).count()
    if campaign.state != Campaign.State.RUNNING or campaign.is_exhausted or waiting >= campaign.low_mark:
        return 0
    try:
        created = create_packets(campaign, campaign.high_mark - waiting)
    except SourceError as error:
        logger.warning("Campaign %s: %s", campaign.slug, error)
        Campaign.objects.filter(pk=campaign.pk).update(source_error=str(error)[:500])
        return 0
    Campaign.objects.filter(pk=campaign.pk).exclude(source_error="").update(source_error="")
    return created


def create_packets(campaign: Campaign, count: int) -> int:
    """Create at least `count` packets unless the source ends or another producer is active; return how many."""
    pin_files(campaign)
    model = get_quality_model(campaign)
    created = 0
    with closing(sources.iterate_rows(campaign)) as rows:
        while created < count:
            batch = list(read_batch(rows))
            if not batch:
                if get_unmoved(campaign).update(is_exhausted=True):
                    shutil.rmtree(sources.get_download_folder(campaign), ignore_errors=True)
                break
            added = store_batch(campaign, batch, model)
            if added is None:
                break
            created += added
    return created


def read_batch(rows: Iterator[SourceRow]) -> Iterator[SourceRow]:
    """Yield the next rows, limited by their number and their characters."""
    size = 0
    for row in islice(rows, ROWS_PER_BATCH):
        yield row
        size += len(row.text or "")
        if size > CHARACTERS_PER_BATCH:
            return


def pin_files(campaign: Campaign) -> None:
    """Pin the source's files and revision, once."""
    if campaign.files:
        return
    if campaign.source == Campaign.Source.HUB:
        files, revision = sources.find_hub_files(campaign)
    else:
        files, revision = sources.find_local_files(campaign.dataset), campaign.revision
    Campaign.objects.filter(pk=campaign.pk, files=[]).update(files=files, revision=revision)
    campaign.refresh_from_db()


def get_quality_model(campaign: Campaign) -> quality.QualityModel | None:
    """Return the model for the campaign's quality buckets; train it on the first documents, once."""
    if not campaign.quality_buckets:
        return None
    if campaign.quality_model is None:
        with closing(sources.iterate_rows(campaign)) as rows:
            found = (source_filters.build_document(row, campaign) for row in islice(rows, 4 * quality.SAMPLE_DOCUMENTS))
            documents = (document for document in found if isinstance(document, Document))
            texts = (document.text[: source_filters.SAMPLE_CHARACTERS] for document in documents)
            sample = list(islice(texts, quality.SAMPLE_DOCUMENTS))
        try:
            model = quality.train_quality_model(sample)
        except ValueError as error:
            raise SourceError(str(error)) from error
        blob = storage.store_bytes(json.dumps(asdict(model), sort_keys=True).encode())
        Campaign.objects.filter(pk=campaign.pk, quality_model=None).update(quality_model=blob)
        campaign.refresh_from_db()
    assert campaign.quality_model is not None, "stored above, by this process or another"
    return quality.load_quality_model(campaign.quality_model.sha256)


# --- a batch ---------------------------------------------------------------------------------------------------------


def store_batch(campaign: Campaign, batch: Sequence[SourceRow], model: quality.QualityModel | None) -> int | None:
    """Create the packets of a batch and move the cursor; return how many, or None if another producer was faster."""
    dropped: Counter[str] = Counter()
    documents = []
    for row in batch:
        document = source_filters.build_document(row, campaign)
        if isinstance(document, Document):
            documents.append(document)
        else:
            dropped[document] += 1
    new_digests: set[int] = set()
    if campaign.drop_repeated:
        hashed = [(document, source_filters.hash_paragraphs(document.text)) for document in documents]
        before = find_seen_digests(campaign, {digest for _, paragraphs in hashed for _, digest in paragraphs})
        seen = set(before)
        documents = list(source_filters.drop_repeated_paragraphs(hashed, seen, dropped))
        new_digests = seen - before
    selected = source_filters.select_documents(documents, campaign, model, dropped)
    rows = {(row.file, row.row): campaign.rows_read + index for index, row in enumerate(batch)}
    packets = [
        packet
        for document in selected
        for packet in build_packets(document, campaign, rows[document.row.file, document.row.row])
    ]
    progress = {
        "cursor": {"file": batch[-1].file, "row": batch[-1].row + 1},
        "rows_read": campaign.rows_read + len(batch),
        "packet_count": campaign.packet_count + len(packets),
        "chunk_count": campaign.chunk_count + sum(len(packet.chunks) for packet in packets),
        "dropped_counts": dict(sorted((Counter(campaign.dropped_counts) + dropped).items())),
    }
    with transaction.atomic():
        if not get_unmoved(campaign).update(**progress):
            return None
        paragraphs = (Paragraph(campaign=campaign, digest=digest) for digest in sorted(new_digests))
        Paragraph.objects.bulk_create(paragraphs, batch_size=ROWS_PER_QUERY)
        Packet.objects.bulk_create(packets, batch_size=ROWS_PER_QUERY)
    for name, value in progress.items():
        setattr(campaign, name, value)
    return len(packets)


def find_seen_digests(campaign: Campaign, digests: Collection[int]) -> set[int]:
    """Return which of these paragraphs the campaign has seen before."""
    ordered, seen = sorted(digests), set()
    paragraphs = Paragraph.objects.filter(campaign=campaign).values_list("digest", flat=True)
    for begin in range(0, len(ordered), ROWS_PER_QUERY):
        seen |= set(paragraphs.filter(digest__in=ordered[begin : begin + ROWS_PER_QUERY]))
    return seen


def build_packets(document: Document, campaign: Campaign, row: int) -> Iterator[Packet]:
    pieces = (piece.strip() for piece in chunks.split_into_chunks(document.text, campaign.chunk_tokens))
    texts = [
        piece[begin : begin + MAX_CHUNK_CHARACTERS]
        for piece in pieces
        for begin in range(0, len(piece), MAX_CHUNK_CHARACTERS)
    ]
    for part, first in enumerate(range(0, len(texts), campaign.chunks_per_packet)):
        yield Packet(
            campaign=campaign,
            row=row,
            part=part,
            document=document.row.name,
            first_chunk=first,
            chunks=texts[first : first + campaign.chunks_per_packet],
            replication="planned" if is_replicated(campaign, row, part) else "none",
        )


def is_replicated(campaign: Campaign, row: int, part: int) -> bool:
    """Whether two volunteers write this packet: random, but the same in every run."""
    digest = hashlib.sha256(f"{campaign.seed}:{row}:{part}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < campaign.replication_rate * 2**64


def get_unmoved(campaign: Campaign) -> QuerySet[Campaign]:
    """Return the campaign's row if it runs and no other producer has moved its cursor."""
    return Campaign.objects.filter(pk=campaign.pk, state=Campaign.State.RUNNING, rows_read=campaign.rows_read)
