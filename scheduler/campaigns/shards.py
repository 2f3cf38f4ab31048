"""Writes accepted texts into shards: Parquet files with a fixed number of rows, each row in exactly one.

A row points at its shard, set in the transaction that creates the shard. The file is written afterwards, and it counts
if the shard still has the version it was written for. So every step can be interrupted and repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from scheduler import storage
from scheduler.campaigns import transitions
from scheduler.campaigns.error_isolation import sum_over_campaigns
from scheduler.campaigns.models import Campaign, Rephrasing, Shard, Volunteer
from scheduler.models import Blob

ROWS_PER_QUERY = 500
ROWS_PER_GROUP = 1000
ROW_ORDER = ("packet_id", "chunk", "style")
COLUMNS: Final = {
    # name: (type, description)
    "id": ("string", "packet, chunk and style; never changes"),
    "document": ("string", "file of the source, and row in the file"),
    "row": ("int64", "row of the source, counted from 0 over all files"),
    "chunk": ("int32", "index of the chunk in the document"),
    "style": ("string", "easy, medium, hard or qa"),
    "source": ("string", "original text of the chunk"),
    "text": ("string", "rephrased text"),
    "source_sha256": ("string", "SHA-256 of `source` in UTF-8"),
    "sha256": ("string", "SHA-256 of `text` in UTF-8"),
    "tokens": ("int32", "tokens of `text`, counted by the volunteer's back end"),
    "volunteer": ("int64", "number of the volunteer"),
    "back_end": ("string", "software that ran the campaign's model"),
}


class RowsChangedError(Exception):
    """The rows were changed concurrently; the next run retries."""


def update_shards() -> int:
    """Create and write the shards of all campaigns; return how many files were written."""
    return sum_over_campaigns(update_campaign_shards, Campaign.objects.started())


def update_campaign_shards(pk: int) -> int:
    """Create the campaign's shards that are full, and write the outdated files; return how many were written."""
    campaign = Campaign.objects.get(pk=pk)
    try:
        while create_shard(campaign):
            pass
    except RowsChangedError:
        pass
    outdated = campaign.shards.outdated()
    return sum(write_shard(shard) for shard in outdated.select_related("campaign"))


@transaction.atomic
def create_shard(campaign: Campaign) -> bool:
    """Create one shard if there are enough rows, or if no more will come; return whether it was created."""
    # `no_key`: submissions, whose rows reference the campaign, need not wait.
    campaign = Campaign.objects.select_for_update(no_key=True).get(pk=campaign.pk)
    unsharded = Rephrasing.objects.unsharded().filter(campaign=campaign)
    due = timezone.now() - timedelta(minutes=campaign.quarantine_minutes)
    ready = unsharded.filter(created_at__lte=due).exclude(volunteer__state=Volunteer.State.BANNED)
    ids = list(ready.order_by(*ROW_ORDER).values_list("pk", flat=True)[: campaign.rows_per_shard])
    if not ids:
        return False
    if len(ids) < campaign.rows_per_shard:
        is_over = campaign.state == Campaign.State.DONE or transitions.is_written(campaign)
        if not is_over or unsharded.count() > len(ids):
            return False
    last = campaign.shards.aggregate(last=Max("number", default=-1))["last"]
    shard = Shard.objects.create(campaign=campaign, number=last + 1)
    moved = sum(
        unsharded.filter(pk__in=ids[begin : begin + ROWS_PER_QUERY]).update(shard=shard)
        for begin in range(0, len(ids), ROWS_PER_QUERY)
    )
    if moved != len(ids):
        raise RowsChangedError
    return True


def write_shard(shard: Shard) -> bool:
    """Write a shard's file; return whether it is current, that is, no rows were withdrawn meanwhile."""
    rows = list(iterate_shard_rows(shard))
    blob = store_parquet(rows)
    current = Shard.objects.filter(pk=shard.pk, version=shard.version)
    written = current.update(written_version=shard.version, blob=blob, rows=len(rows), written_at=timezone.now())
    return written == 1


def iterate_shard_rows(shard: Shard) -> Iterator[dict[str, Any]]:
    accepted = shard.rephrasings.accepted().select_related("packet")
    for row in accepted.order_by(*ROW_ORDER).iterator(chunk_size=ROWS_PER_GROUP):
        yield {
            "id": f"{row.packet_id}-{row.chunk}-{row.style}",
            "document": row.packet.document,
            "row": row.packet.row,
            "chunk": row.chunk,
            "style": row.style,
            "source": row.source,
            "text": row.text,
            "source_sha256": row.source_sha256,
            "sha256": row.sha256,
            "tokens": row.tokens,
            "volunteer": row.volunteer_id,
            "back_end": row.back_end,
        }


def store_parquet(rows: list[dict[str, Any]]) -> Blob:
    """Write these rows as Parquet and store the file; equal rows give equal bytes."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, (kind, _) in COLUMNS.items()])
    folder = Path(settings.HOME) / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    # A new name: storing moves the file, so a concurrent writer of the same shard must not open it.
    with TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "shard.parquet"
        table = pyarrow.Table.from_pylist(rows, schema)
        parquet.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return storage.store_local_file(sha256, path)
