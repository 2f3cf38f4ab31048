"""What other sites show: cards for link previews, chats and the Hub (1200 x 630).

A card is the page's loss curve with a title and a number; a PNG, since link previews do not show SVG.
"""

from __future__ import annotations

from django.conf import settings
from django.template.loader import render_to_string
from resvg_py import svg_to_bytes

from leaderboard import formatting
from leaderboard.charts import panels
from leaderboard.models import Entry, Run, Standing, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.sanitize import sanitize_text

TITLE_LENGTH, LINE_LENGTH = 48, 90
NOT_XML = dict.fromkeys((0xFFFE, 0xFFFF))


def draw_run_card(run: Run) -> bytes:
    subtitle = f"{run.track.name}, {formatting.budget(run.budget)}, seed {run.seed}"
    number = ("", "") if run.bits_per_byte is None else (f"{run.bits_per_byte:.4f}", "bits per byte")
    return draw_card(run.entry.title, subtitle, number, "loss in nats per token, by tokens", run)


def draw_entry_card(entry: Entry) -> bytes:
    """Draw an entry's multiplier, and the curve of its best scored run."""
    row = load_standings(entry.track).get_row(entry.pk)
    by = f"by {entry.author}, " if entry.author else ""
    subtitle = f"{by}{entry.track.name}, {formatting.budget(entry.track.budget)}"
    footer = describe_row(row) if row else entry.get_state_display().capitalize()
    return draw_card(entry.title, subtitle, get_number(row), footer, find_best_run(entry))


def draw_track_card(track: Track) -> bytes:
    """Draw the leading entry's multiplier, and the curve of its best scored run."""
    table = load_standings(track)
    row = table.get_row(table.leader_id) or table.get_row(table.baseline_id)
    footer = f"Leading: {row.entry.title}. {describe_row(row)}" if row else "No results yet"
    subtitle = f"{formatting.budget(track.budget)}, {track.season.name}"
    return draw_card(track.name, subtitle, get_number(row), footer, find_best_run(row.entry) if row else None)


def get_number(row: Standing | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    if row.multiplier is None or row.is_baseline:
        return f"{row.bits_per_byte:.4f}", "bits per byte"
    return f"{row.multiplier:.3f}", "compute multiplier"


def describe_row(row: Standing) -> str:
    if row.is_baseline:
        return "The baseline of the season"
    if not row.multiplier:
        return "No multiplier yet"
    low, high = row.multiplier_low, row.multiplier_high
    interval = f" ({low:.3f} to {high:.3f})" if low and high else ""
    return f"{row.multiplier:.3f}{interval}, {row.run_count} runs"


def find_best_run(entry: Entry) -> Run | None:
    return Run.objects.with_entry().filter(entry=entry, bits_per_byte__isnull=False).order_by("bits_per_byte").first()


def draw_card(title: str, subtitle: str, number: tuple[str, str], footer: str, run: Run | None) -> bytes:
    texts = {
        "title": sanitize_text(title, TITLE_LENGTH),
        "subtitle": sanitize_text(subtitle, LINE_LENGTH),
        "footer": sanitize_text(footer, LINE_LENGTH),
        "number": number,
        "site": settings.SITE_NAME,
    }
    picture = panels.draw_run(run) if run else None
    svg = render_to_string("leaderboard/card.svg", {**texts, "picture": picture})
    return svg_to_bytes(svg.translate(NOT_XML))
