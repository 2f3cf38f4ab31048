"""Records of other boards, imported from files (`manage.py import_records`). Only their form is checked.

{"source": "An example speedrun", "measures": "minutes to 3.28 nats per token on eight H100",
 "lower_is_better": true,
 "records": [{"date": "2024-10-13", "title": "Muon", "author": "kj", "value": 22.3, "url": "https://..."}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import groupby
from typing import Annotated

from django.db import transaction
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leaderboard.models import Track
from leaderboard.models.reported import ReportedRecord
from leaderboard.sanitize import sanitize_text

MAX_RECORDS = 10_000
Address = Annotated[str, Field(max_length=200, pattern=r"^(https?://\S+)?$")]


class RecordsFileError(ValueError):
    """The file is invalid; the message is one line."""


class HistoryRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    date: date
    title: Annotated[str, Field(min_length=1, max_length=200)]
    value: Annotated[float, Field(allow_inf_nan=False)]
    author: Annotated[str, Field(max_length=120)] = ""
    url: Address = ""


class History(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(min_length=1, max_length=120)]
    measures: Annotated[str, Field(min_length=1, max_length=200)]
    lower_is_better: bool = True
    records: Annotated[list[HistoryRecord], Field(min_length=1, max_length=MAX_RECORDS)]


def parse_records(text: str | bytes) -> History:
    """Parse a file. Raises RecordsFileError with the first error."""
    try:
        return History.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "the file"
        raise RecordsFileError(f"{place}: {fault['msg']}") from error


@transaction.atomic
def import_records(track: Track, history: History) -> tuple[int, int]:
    """Store the records; return the numbers of new and of known ones. Idempotent."""
    new = 0
    for record in history.records:
        _, created = ReportedRecord.objects.update_or_create(
            track=track,
            source=sanitize_text(history.source, 120),
            date=record.date,
            title=sanitize_text(record.title, 200),
            defaults={
                "author": sanitize_text(record.author, 120),
                "value": record.value,
                "measures": sanitize_text(history.measures, 200),
                "lower_is_better": history.lower_is_better,
                "url": record.url,
            },
        )
        new += created
    return new, len(history.records) - new


def group_by_source(track: Track) -> list[tuple[str, Sequence[ReportedRecord]]]:
    """Return the track's records by source, latest first."""
    found = track.reported.order_by("source", "-date", "-pk")
    return [(source, list(records)) for source, records in groupby(found, key=lambda record: record.source)]
