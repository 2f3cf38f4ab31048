"""Pictures of link previews (OpenGraph): an entry's multiplier over its curve, a track's records as a line that climbs.

Drawn with Pillow, which draws a run's curve already (`curve_files`): an SVG is no link preview anywhere.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from django.conf import settings
from django.utils import timezone
from PIL import Image, ImageDraw

from leaderboard import formatting
from leaderboard.charts import curve_svg
from leaderboard.charts.badges import format_value
from leaderboard.charts.curve_files import (
    BETTER,
    HEIGHT,
    INK,
    LEFT,
    LINE,
    PAPER,
    QUIET,
    RAW,
    RIGHT,
    SCALE,
    WIDTH,
    dots,
    line,
    place,
    write,
)
from leaderboard.charts.frontier import Frontier, build_frontier, load_records
from leaderboard.models import Entry, Run, Track
from leaderboard.rankings.standings_store import load_standings

TITLE = 40
"""Letters of a title beside the number."""


def of_entry(entry: Entry) -> bytes:
    """Return the card of an entry: its multiplier, and the curve of its best run where one has been judged."""
    image, draw = paper()
    row = load_standings(entry.track).get_row(entry.pk)
    by = f"by {entry.author}, " if entry.author else ""
    heading(draw, entry.title, f"{by}{entry.track.name}, {formatting.budget(entry.track.budget)}")
    if row and row.estimate and row.estimate.cm and not row.is_baseline:
        number(draw, f"{row.estimate.cm:.3f}", "compute multiplier")
        foot(draw, f"{format_value(row)}: what the baseline needs, over what it used; {row.run_count} runs")
    elif row:
        number(draw, f"{row.bits_per_byte:.4f}", "bits per byte")
        foot(draw, "The baseline of the season" if row.is_baseline else "No multiplier yet")
    else:
        foot(draw, entry.get_state_display().capitalize())
    best = Run.objects.with_entry().filter(entry=entry, bits_per_byte__isnull=False).order_by("bits_per_byte").first()
    if best and (picture := curve_svg.picture(best, curve_svg.curve_of(best))):
        grid(draw, picture.x_ticks, picture.y_ticks)
        line(draw, dots(picture.raw), RAW, 1)
        line(draw, dots(picture.smooth), INK, 3)
    return png(image)


def of_track(track: Track) -> bytes:
    """Return the card of a board: the records over time."""
    image, draw = paper()
    heading(draw, track.name, f"{formatting.budget(track.budget)}, {track.season.name}")
    table = load_standings(track)
    found = build_frontier(table, load_records(table), timezone.now())
    if found and found.standing:
        row = found.standing.row
        number(draw, format_value(row).partition(" ")[0], "the record")
        foot(draw, f"{row.entry.title[:TITLE]}: compute multipliers of records over time")
    else:
        foot(draw, "No record yet: the baseline stands")
    if found:
        climb(draw, found)
    return png(image)


def climb(draw: ImageDraw.ImageDraw, found: Frontier) -> None:
    grid(draw, found.x_ticks, found.y_ticks)
    line(draw, [place(0, found.baseline), place(97, found.baseline)], RAW, 2)
    for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", found.others):
        spot(draw, float(x), float(y), 7, RAW)
    if not found.stations:
        return
    points, height = [(0.0, found.baseline)], found.baseline
    for one in found.stations:
        points += [(one.x, height), (one.x, one.y)]
        height = one.y
    line(draw, [place(x, y) for x, y in [*points, (97.0, height)]], BETTER, 4)
    for one in found.stations:
        spot(draw, one.x, one.y, 12, BETTER)


# --- what all cards have ---------------------------------------------------------------------------------------------


def paper() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
    return image, ImageDraw.Draw(image)


def heading(draw: ImageDraw.ImageDraw, title: str, under: str) -> None:
    write(draw, 48, 40, title if len(title) <= TITLE else f"{title[: TITLE - 1]}…", 44, INK)
    write(draw, 48, 104, under[:80], 24, QUIET)


def number(draw: ImageDraw.ImageDraw, text: str, unit: str) -> None:
    write(draw, WIDTH - 48, 40, text, 52, BETTER, "ra")
    write(draw, WIDTH - 48, 104, unit, 24, QUIET, "ra")


def foot(draw: ImageDraw.ImageDraw, text: str) -> None:
    write(draw, 48, HEIGHT - 24, text[:90], 20, QUIET, "ls")
    write(draw, WIDTH - 48, HEIGHT - 24, settings.SITE_NAME, 20, QUIET, "rs")


def grid(draw: ImageDraw.ImageDraw, x_ticks: Sequence[curve_svg.Tick], y_ticks: Sequence[curve_svg.Tick]) -> None:
    for tick in y_ticks:
        _, y = place(0, tick.at)
        draw.line([LEFT * SCALE, y, RIGHT * SCALE, y], fill=LINE, width=SCALE)
        write(draw, LEFT - 12, y / SCALE, tick.label, 20, QUIET, "rm")
    for tick in x_ticks:
        x, y = place(tick.at, 100)
        write(draw, x / SCALE, y / SCALE + 12, tick.label, 20, QUIET, "ma")


def spot(draw: ImageDraw.ImageDraw, x: float, y: float, radius: int, color: str) -> None:
    across, down = place(x, y)
    draw.ellipse([across - radius, down - radius, across + radius, down + radius], fill=color)


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return out.getvalue()
