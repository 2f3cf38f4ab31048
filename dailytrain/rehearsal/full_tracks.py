"""The tracks to rehearse at their full size: those of the site, as edited in the admin, and templates.

The command reads them with the site's settings and writes them into the rehearsal's folder, where it reads them again
with the settings of the rehearsal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.forms import model_to_dict

from leaderboard.models import Season, Track
from leaderboard.schedule.track_templates import TEMPLATES

FILE = "tracks.json"


@dataclass(frozen=True)
class FullTrack:
    slug: str
    fields: dict[str, Any]
    """Fields of the track without relations: the rehearsal has another season and no start run."""
    vocabulary_size: int | None = None

    def build(self, **changes: Any) -> Track:
        """Return the unsaved track."""
        season = Season(vocabulary_size=self.vocabulary_size)
        return Track(slug=self.slug, season=season, **{**self.fields, **changes})


def find_tracks(slugs: Sequence[str]) -> list[FullTrack]:
    """Return the site's tracks with these slugs, and the templates of slugs that it lacks. Raises CommandError."""
    own = read_site()
    if unknown := [slug for slug in slugs if slug not in own and slug not in TEMPLATES]:
        tracks = ", ".join(own) or "none"
        raise CommandError(f"There is no track {unknown[0]}. Tracks: {tracks}. Templates: {', '.join(TEMPLATES)}.")
    return [own.get(slug) or FullTrack(slug, TEMPLATES[slug]) for slug in slugs]


def read_site() -> dict[str, FullTrack]:
    """Return the tracks of the site; none before its first migration."""
    names = [field.name for field in Track._meta.concrete_fields if not (field.is_relation or field.unique)]
    try:
        tracks = list(Track.objects.select_related("season"))
    except DatabaseError:
        return {}
    return {
        track.slug: FullTrack(track.slug, model_to_dict(track, names), track.season.vocabulary_size) for track in tracks
    }


def write_tracks(folder: Path, tracks: Sequence[FullTrack]) -> None:
    (folder / FILE).write_text(json.dumps([asdict(track) for track in tracks], indent=1))


def read_tracks(folder: Path) -> list[FullTrack]:
    return [FullTrack(**values) for values in json.loads((folder / FILE).read_text())]
