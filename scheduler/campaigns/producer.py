"""Makes packets of a campaign's source, each exactly once, as long as there are few waiting.

The cursor moves in the transaction that makes the packets, by a conditional UPDATE: whoever is killed has done a batch
or has not, and of two producers at once one has done it. So nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from django.db import transaction

from scheduler import storage
from scheduler.campaigns import quality, source_filters, sources
from scheduler.campaigns.source_filters import Candidate, Kept
from scheduler.campaigns.sources import Row, SourceError
from scheduler.models import Campaign, Packet, Paragraph
from trainer.rephrase import chunks

logger = logging.getLogger(__name__)

ROWS = 100
CHARACTERS = 2_000_000
"""Of a batch, at most, but for its last document: what is read and not yet kept is read again after a crash."""
IN_ONE_QUERY = 500
LONGEST_CHUNK = 40_000
"""Characters, as `protocol.Chunk` has it."""


def produce_all() -> int:
    """Fill up every running campaign; return how many packets were made."""
    running = Campaign.objects.filter(state=Campaign.State.RUNNING, exhausted=False)
    return sum(produce(pk) for pk in running.values_list("pk", flat=True))


def produce(pk: int) -> int:
    """Fill a campaign up to its high mark if fewer than its low mark wait; return how many packets were made."""
    campaign = Campaign.objects.select_related("quality").get(pk=pk)
    waiting = campaign.packets.filter(state=Packet.State.WAITING).count()
    if campaign.state != Campaign.State.RUNNING or campaign.exhausted or waiting >= campaign.low_mark:
        return 0
    try:
        made = fill(campaign, campaign.high_mark - waiting)
    except SourceError as error:
        logger.warning("Campaign %s: %s", campaign.slug, error)
        Campaign.objects.filter(pk=pk).update(trouble=str(error)[:500])
        return 0
    Campaign.objects.filter(pk=pk).exclude(trouble="").update(trouble="")
    return made


def fill(campaign: Campaign, room: int) -> int:
    """Make packets until there is no more room, or no more text, or somebody else is at it."""
    find_files(campaign)
    measure = quality_of(campaign)
    made = 0
    with closing(sources.rows(campaign)) as rows:
        while made < room:
            batch = list(portion(rows))
            if not batch:
                end(campaign)
                break
            count = keep(campaign, batch, measure)
            if count is None:
                break
            made += count
    return made


def portion(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the next rows: so many, or so much text."""
    size = 0
    for row in islice(rows, ROWS):
        yield row
        size += len(row.text or "")
        if size > CHARACTERS:
            return


def find_files(campaign: Campaign) -> None:
    """Pin the files of the source, the first time."""
    if campaign.files:
        return
    files, revision = sources.resolve(campaign)
    found = {"files": files, **({"revision": revision} if revision else {})}
    Campaign.objects.filter(pk=campaign.pk, files=[]).update(**found)
    campaign.refresh_from_db()


def quality_of(campaign: Campaign) -> quality.Quality | None:
    """Return what tells the campaign's buckets; made of its source's first documents, the first time."""
    if not campaign.buckets:
        return None
    if campaign.quality is None:
        with closing(sources.rows(campaign)) as rows:
            looked = (source_filters.look(row, campaign) for row in islice(rows, 4 * quality.SAMPLE))
            fit = (source_filters.whole(found) for found in looked if isinstance(found, Candidate))
            sample = [text[: source_filters.JUDGED_CHARACTERS] for text in islice(fit, quality.SAMPLE)]
        try:
            learned = quality.learn(sample)
        except ValueError as error:
            raise SourceError(str(error)) from error
        Campaign.objects.filter(pk=campaign.pk, quality=None).update(quality=storage.store_bytes(learned.dump()))
        campaign.refresh_from_db()
    assert campaign.quality is not None, "it was kept just now, by us or another"
    return quality.load(campaign.quality.sha256)


# --- a batch ---------------------------------------------------------------------------------------------------------


def keep(campaign: Campaign, batch: Sequence[Row], measure: quality.Quality | None) -> int | None:
    """Make the packets of a batch, and move on; return how many, None where somebody else has moved on."""
    dropped: dict[str, int] = {}
    candidates = []
    for row in batch:
        found = source_filters.look(row, campaign)
        if isinstance(found, str):
            source_filters.add(dropped, found)
        else:
            candidates.append(found)
    digests = {number for candidate in candidates for number in candidate.digests}
    before = known(campaign, digests) if campaign.drop_repeated else set()
    seen = set(before)
    kept = source_filters.choose(candidates, campaign, seen, measure, dropped)
    numbers = {(row.file, row.row): campaign.rows_read + index for index, row in enumerate(batch)}
    packets = [packet for one in kept for packet in packets_of(one, campaign, numbers[one.row.file, one.row.row])]
    last = batch[-1]
    moved = {
        "cursor": {"file": last.file, "row": last.row + 1},
        "rows_read": campaign.rows_read + len(batch),
        "packets_made": campaign.packets_made + len(packets),
        "chunks_made": campaign.chunks_made + sum(len(packet.chunks) for packet in packets),
        "dropped": source_filters.together(campaign.dropped, dropped),
    }
    with transaction.atomic():
        mine = Campaign.objects.filter(pk=campaign.pk, state=Campaign.State.RUNNING, rows_read=campaign.rows_read)
        if not mine.update(**moved):
            return None
        new = (Paragraph(campaign=campaign, digest=number) for number in sorted(seen - before))
        Paragraph.objects.bulk_create(new, batch_size=IN_ONE_QUERY)
        Packet.objects.bulk_create(packets, batch_size=IN_ONE_QUERY)
    for name, value in moved.items():
        setattr(campaign, name, value)
    return len(packets)


def known(campaign: Campaign, digests: Iterable[int]) -> set[int]:
    """Return which paragraphs came before."""
    wanted, found = sorted(digests), set()
    for begin in range(0, len(wanted), IN_ONE_QUERY):
        some = wanted[begin : begin + IN_ONE_QUERY]
        found |= set(Paragraph.objects.filter(campaign=campaign, digest__in=some).values_list("digest", flat=True))
    return found


def packets_of(kept: Kept, campaign: Campaign, number: int) -> Iterator[Packet]:
    """Yield the packets of a document."""
    pieces = (piece.strip() for piece in chunks.split_into_chunks(kept.text, campaign.chunk_tokens))
    texts = [piece[begin:][:LONGEST_CHUNK] for piece in pieces for begin in range(0, len(piece), LONGEST_CHUNK)]
    size = campaign.chunks_per_packet
    for part, first in enumerate(range(0, len(texts), size)):
        yield Packet(
            campaign=campaign,
            row=number,
            part=part,
            document=kept.row.name,
            first=first,
            chunks=texts[first : first + size],
            second=Packet.Second.LATER if goes_to_two(campaign, number, part) else Packet.Second.NO,
        )


def goes_to_two(campaign: Campaign, number: int, part: int) -> bool:
    """Whether two volunteers write this packet: drawn, and the same however often it is asked."""
    drawn = hashlib.sha256(f"{campaign.seed}:{number}:{part}".encode()).digest()
    return int.from_bytes(drawn[:8], "big") < campaign.second_share * 2**64


def end(campaign: Campaign) -> None:
    """There is no more text."""
    mine = Campaign.objects.filter(pk=campaign.pk, state=Campaign.State.RUNNING, rows_read=campaign.rows_read)
    if mine.update(exhausted=True):
        sources.forget_all(campaign)
