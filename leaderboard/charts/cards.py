"""Pictures of link previews (OpenGraph): an entry's multiplier over its curve, a track's records as a line that climbs.

Drawn with Pillow, which draws a run's curve already (`curve_files`): an SVG is no link preview anywhere.
"""

from __future__ import annotations

import re

from django.conf import settings
from django.utils import timezone
from PIL import ImageDraw

from leaderboard import formatting
from leaderboard.charts import curve_svg
from leaderboard.charts.badges import format_value
from leaderboard.charts.curve_files import (
    BETTER,
    HEIGHT,
    INK,
    QUIET,
    RAW,
    WIDTH,
    dots,
    draw_axes,
    encode_png,
    line,
    new_image,
    place,
    write,
)
from leaderboard.charts.frontier import Frontier, build_frontier, load_records
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.standings_store import load_standings

TITLE = 40
"""Letters of a title beside the number."""


def draw_entry_card(entry: Entry) -> bytes:
    """Return the card of an entry: its multiplier, and the curve of its best run where one has been judged."""
    image, draw = new_image()
    row = load_standings(entry.track).get_row(entry.pk)
    by = f"by {entry.author}, " if entry.author else ""
    draw_heading(draw, entry.title, f"{by}{entry.track.name}, {formatting.budget(entry.track.budget)}")
    if row and row.estimate and row.estimate.cm and not row.is_baseline:
        draw_number(draw, f"{row.estimate.cm:.3f}", "compute multiplier")
        draw_footer(draw, f"{format_value(row)}: what the baseline needs, over what it used; {row.run_count} runs")
    elif row:
        draw_number(draw, f"{row.bits_per_byte:.4f}", "bits per byte")
        draw_footer(draw, "The baseline of the season" if row.is_baseline else "No multiplier yet")
    else:
        draw_footer(draw, entry.get_state_display().capitalize())
    best = Run.objects.with_entry().filter(entry=entry, bits_per_byte__isnull=False).order_by("bits_per_byte").first()
    if best and (picture := curve_svg.picture(best, curve_svg.curve_of(best))):
        draw_axes(draw, picture.x_ticks, picture.y_ticks)
        line(draw, dots(picture.raw), RAW, 1)
        line(draw, dots(picture.smooth), INK, 3)
    return encode_png(image)


def draw_track_card(track: Track) -> bytes:
    """Return the card of a board: the records over time."""
    image, draw = new_image()
    draw_heading(draw, track.name, f"{formatting.budget(track.budget)}, {track.season.name}")
    table = load_standings(track)
    found = build_frontier(table, load_records(table), timezone.now())
    if found and found.standing:
        row = found.standing.row
        draw_number(draw, format_value(row).partition(" ")[0], "the record")
        draw_footer(draw, f"{row.entry.title[:TITLE]}: compute multipliers of records over time")
    else:
        draw_footer(draw, "No record yet: the baseline stands")
    if found:
        draw_records(draw, found)
    return encode_png(image)


def draw_records(draw: ImageDraw.ImageDraw, found: Frontier) -> None:
    draw_axes(draw, found.x_ticks, found.y_ticks)
    line(draw, [place(0, found.baseline), place(97, found.baseline)], RAW, 2)
    for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", found.others):
        draw_dot(draw, float(x), float(y), 7, RAW)
    if not found.stations:
        return
    points, height = [(0.0, found.baseline)], found.baseline
    for one in found.stations:
        points += [(one.x, height), (one.x, one.y)]
        height = one.y
    line(draw, [place(x, y) for x, y in [*points, (97.0, height)]], BETTER, 4)
    for one in found.stations:
        draw_dot(draw, one.x, one.y, 12, BETTER)


# --- what all cards have ---------------------------------------------------------------------------------------------


def draw_heading(draw: ImageDraw.ImageDraw, title: str, under: str) -> None:
    write(draw, 48, 40, title if len(title) <= TITLE else f"{title[: TITLE - 1]}…", 44, INK)
    write(draw, 48, 104, under[:80], 24, QUIET)


def draw_number(draw: ImageDraw.ImageDraw, text: str, unit: str) -> None:
    write(draw, WIDTH - 48, 40, text, 52, BETTER, "ra")
    write(draw, WIDTH - 48, 104, unit, 24, QUIET, "ra")


def draw_footer(draw: ImageDraw.ImageDraw, text: str) -> None:
    write(draw, 48, HEIGHT - 24, text[:90], 20, QUIET, "ls")
    write(draw, WIDTH - 48, HEIGHT - 24, settings.SITE_NAME, 20, QUIET, "rs")


def draw_dot(draw: ImageDraw.ImageDraw, x: float, y: float, radius: int, color: str) -> None:
    across, down = place(x, y)
    draw.ellipse([across - radius, down - radius, across + radius, down + radius], fill=color)
