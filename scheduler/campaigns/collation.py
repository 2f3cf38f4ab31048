"""What was accepted becomes shards: Parquet files of a fixed number of rows, each row in exactly one.

A row belongs to a shard by its own column, set in one transaction with the shard; the file follows the rows, and counts
when it is written for the version that the shard has then. Whoever dies on the way has done one step or has not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from scheduler import storage
from scheduler.campaigns import packet_orders, transitions
from scheduler.models import Campaign, Rephrasing, Shard, Volunteer
from scheduler.models.jobs import Blob

IN_ONE_QUERY = 500
ROWS_A_GROUP = 1000
COLUMNS: Final = {
    # name: (type, what it is)
    "id": ("string", "packet, chunk and style: the same row has it for ever"),
    "document": ("string", "the source's file and the row in it"),
    "row": ("int64", "of the source, counted from 0 over all of its files"),
    "chunk": ("int32", "of the document, counted from 0"),
    "style": ("string", "easy, medium, hard or qa"),
    "source": ("string", "the chunk as it was"),
    "text": ("string", "the chunk, rephrased"),
    "source_sha256": ("string", "of `source` in UTF-8"),
    "sha256": ("string", "of `text` in UTF-8"),
    "tokens": ("int32", "of `text`, as the volunteer's back end counts"),
    "volunteer": ("int64", "a number for whoever wrote it"),
    "back_end": ("string", "what it was written with, beside the campaign's model"),
}


class Contested(Exception):
    """Somebody changed the rows meanwhile: the next round looks anew."""


def collate_all() -> int:
    """Make and write what shards can be; return how many files were written."""
    begun = Campaign.objects.exclude(state=Campaign.State.DRAFT)
    return sum(collate(pk) for pk in begun.values_list("pk", flat=True))


def collate(pk: int) -> int:
    """Make the shards of a campaign for which there are rows, and write those whose file is not up to date."""
    campaign = Campaign.objects.get(pk=pk)
    try:
        while assign(campaign):
            pass
    except Contested:
        pass
    outdated = campaign.shards.exclude(written=F("version"))
    return sum(write(shard) for shard in outdated.select_related("campaign"))


@transaction.atomic
def assign(campaign: Campaign) -> bool:
    """Make one shard of the rows that are ready, if there are enough, or if there will be no more; return whether."""
    # Not against those who hand in just now, whose rows point at the campaign.
    campaign = Campaign.objects.select_for_update(no_key=True).get(pk=campaign.pk)
    settled = timezone.now() - timedelta(minutes=campaign.settle_minutes)
    loose = Rephrasing.objects.filter(campaign=campaign, state=Rephrasing.State.ACCEPTED, shard=None).order_by(
        "packet_id", "chunk", "style"
    )
    good = loose.exclude(volunteer__state=Volunteer.State.BARRED)
    ids = list(good.filter(at__lte=settled).values_list("pk", flat=True)[: campaign.rows_per_shard])
    if not ids or (len(ids) < campaign.rows_per_shard and not is_last(campaign, loose.count(), len(ids))):
        return False
    last = campaign.shards.aggregate(last=Max("number"))["last"]
    shard = Shard.objects.create(campaign=campaign, number=0 if last is None else last + 1)
    moved = sum(
        Rephrasing.objects.filter(
            pk__in=ids[begin : begin + IN_ONE_QUERY], state=Rephrasing.State.ACCEPTED, shard=None
        ).update(shard=shard)
        for begin in range(0, len(ids), IN_ONE_QUERY)
    )
    if moved != len(ids):
        raise Contested
    return True


def is_last(campaign: Campaign, loose: int, ready: int) -> bool:
    """Whether these rows are all that will ever be, so that the last shard is smaller."""
    over = campaign.state == Campaign.State.DONE or transitions.is_written(campaign)
    return over and loose == ready


def write(shard: Shard) -> bool:
    """Write the file of a shard, and let it count unless rows have gone meanwhile; return whether it counts."""
    version, rows = shard.version, list(rows_of(shard))
    blob = kept(rows, Path(settings.HOME) / "collating" / f"{shard.pk}-{version}.parquet")
    mine = Shard.objects.filter(pk=shard.pk, version=version)
    return mine.update(written=version, blob=blob, rows=len(rows), written_at=timezone.now()) == 1


def rows_of(shard: Shard) -> Iterator[dict[str, Any]]:
    rows = Rephrasing.objects.filter(shard=shard, state=Rephrasing.State.ACCEPTED).order_by(
        "packet_id", "chunk", "style"
    )
    for row in rows.select_related("packet").iterator(chunk_size=ROWS_A_GROUP):
        yield {
            "id": f"{row.packet_id}-{row.chunk}-{row.style}",
            "document": row.packet.document,
            "row": row.packet.row,
            "chunk": row.chunk,
            "style": row.style,
            "source": packet_orders.source(row.packet, row.chunk),
            "text": row.text,
            "source_sha256": row.source_sha256,
            "sha256": row.sha256,
            "tokens": row.tokens,
            "volunteer": row.volunteer_id,
            "back_end": row.back_end,
        }


def kept(rows: list[dict[str, Any]], path: Path) -> Blob:
    """Write a Parquet file of these rows and keep it; the same rows give the same bytes."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, (kind, _) in COLUMNS.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        table = pyarrow.Table.from_pylist(rows, schema)
        parquet.write_table(table, path, compression="zstd", row_group_size=ROWS_A_GROUP)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return storage.store_local_file(sha256, path)
    finally:
        path.unlink(missing_ok=True)
