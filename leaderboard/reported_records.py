"""Another board's history comes in: a file of records, checked for form alone.

{"source": "Somebody's speedrun", "measures": "minutes to 3.28 nats per token on eight H100",
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
from leaderboard.sanitize import plain_text

MOST = 10_000
"""Records of one file."""
Address = Annotated[str, Field(max_length=200, pattern=r"^(https?://\S+)?$")]


class RecordsFileError(ValueError):
    """The file does not hold records; the message is one line."""


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    date: date
    title: Annotated[str, Field(min_length=1, max_length=200)]
    value: Annotated[float, Field(allow_inf_nan=False)]
    author: Annotated[str, Field(max_length=120)] = ""
    url: Address = ""


class History(BaseModel):
    """A file of `manage.py import_records`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Annotated[str, Field(min_length=1, max_length=120)]
    measures: Annotated[str, Field(min_length=1, max_length=200)]
    lower_is_better: bool = True
    records: Annotated[list[Line], Field(min_length=1, max_length=MOST)]


def parse_records(text: str | bytes) -> History:
    """Return the file's content; raise RecordsFileError with its first mistake."""
    try:
        return History.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "the file"
        raise RecordsFileError(f"{place}: {fault['msg']}") from error


@transaction.atomic
def import_records(track: Track, history: History) -> tuple[int, int]:
    """Write the records down; return how many are new and how many were known. The same file twice changes nothing."""
    new = 0
    for line in history.records:
        _, created = ReportedRecord.objects.update_or_create(
            track=track,
            source=plain_text(history.source, 120),
            date=line.date,
            title=plain_text(line.title, 200),
            defaults={
                "author": plain_text(line.author, 120),
                "value": line.value,
                "measures": plain_text(history.measures, 200),
                "lower_is_better": history.lower_is_better,
                "url": line.url,
            },
        )
        new += created
    return new, len(history.records) - new


def group_by_source(track: Track) -> list[tuple[str, Sequence[ReportedRecord]]]:
    """Return the track's reported records, latest first, by whose word they are."""
    found = track.reported.order_by("source", "-date", "-pk")
    return [(source, list(records)) for source, records in groupby(found, key=lambda record: record.source)]
