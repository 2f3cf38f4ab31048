"""Images for other sites: PNG cards for link previews and chats (1200 x 630), and the texts of README badges.

Drawn with Pillow, since link previews do not show SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import pairwise

from django.conf import settings
from django.utils import timezone
from PIL import Image, ImageDraw, ImageFont

from leaderboard import formatting
from leaderboard.charts import curve_svg
from leaderboard.charts.frontier import Frontier, build_frontier, get_multiplier, load_records
from leaderboard.models import Entry, Run, Standing, StandingsTable, Track
from leaderboard.rankings.standings_store import load_standings

WIDTH, HEIGHT = 1200, 630
SCALE = 2
"""Drawn larger and reduced, which smooths the lines."""
LEFT, TOP, RIGHT, BOTTOM = 96, 176, 1152, 530
"""The chart's area."""
PAPER, INK, QUIET, LINE, RAW, BETTER = "#ffffff", "#14181b", "#56606a", "#dde1e4", "#b9c1c8", "#0b5cad"
"""The light colors of train.css, since the background of a chat is unknown."""
MAX_TITLE_LENGTH = 40
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
DIGITS = str.maketrans(SUPERSCRIPTS, "0123456789-")


class Card:
    """A card under construction. `write` takes pixels, the chart per cent of its area."""

    def __init__(self, title: str, subtitle: str) -> None:
        self.image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.write(48, 40, title, 44, INK)
        self.write(48, 104, subtitle[:80], 24, QUIET)
        self.write(WIDTH - 48, HEIGHT - 24, settings.SITE_NAME, 20, QUIET, "rs")

    def write(self, x: float, y: float, text: str, size: int, color: str, anchor: str = "la") -> None:
        font = ImageFont.load_default(size * SCALE)  # Pillow's own: a container has no fonts
        self.draw.text((x * SCALE, y * SCALE), replace_superscripts(text), fill=color, font=font, anchor=anchor)

    def write_number(self, text: str, unit: str, color: str = BETTER) -> None:
        self.write(WIDTH - 48, 40, text, 52, color, "ra")
        self.write(WIDTH - 48, 104, unit, 24, QUIET, "ra")

    def write_footer(self, text: str) -> None:
        self.write(48, HEIGHT - 24, text[:90], 20, QUIET, "ls")

    def draw_axes(self, x_ticks: Sequence[curve_svg.Tick], y_ticks: Sequence[curve_svg.Tick]) -> None:
        for tick in y_ticks:
            _, y = place(0, tick.at)
            self.draw.line([LEFT * SCALE, y, RIGHT * SCALE, y], fill=LINE, width=SCALE)
            self.write(LEFT - 12, y / SCALE, tick.label, 20, QUIET, "rm")
        for tick in x_ticks:
            x, y = place(tick.at, 100)
            self.write(x / SCALE, y / SCALE + 12, tick.label, 20, QUIET, "ma")

    def draw_line(self, points: Sequence[tuple[float, float]], color: str, width: int) -> None:
        for start, end in pairwise(place(x, y) for x, y in points):
            self.draw.line([start, end], fill=color, width=width * SCALE)

    def draw_dot(self, x: float, y: float, radius: int, color: str, outline: str | None = None) -> None:
        across, down = place(x, y)
        box = [across - radius, down - radius, across + radius, down + radius]
        self.draw.ellipse(box, fill=color, outline=outline, width=4 if outline else 1)

    def draw_curve(self, picture: curve_svg.Picture) -> None:
        self.draw_axes(picture.x_ticks, picture.y_ticks)
        for (x, y), color, width in ((picture.raw, RAW, 1), (picture.smooth, INK, 3)):
            self.draw_line(list(zip(x.tolist(), y.tolist(), strict=True)), color, width)

    def encode_png(self) -> bytes:
        out = io.BytesIO()
        self.image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
        return out.getvalue()


def replace_superscripts(text: str) -> str:
    """Replace what Pillow's font lacks: 10¹² becomes 10^12."""
    text = text.replace(formatting.SPACE, " ")
    return re.sub(f"[{SUPERSCRIPTS}]+", lambda found: "^" + found[0].translate(DIGITS), text)


def shorten_title(title: str) -> str:
    return title if len(title) <= MAX_TITLE_LENGTH else f"{title[: MAX_TITLE_LENGTH - 1]}…"


def place(x: float, y: float) -> tuple[float, float]:
    """Convert per cent of the chart's area to pixels of the enlarged image."""
    return (LEFT + x / 100 * (RIGHT - LEFT)) * SCALE, (TOP + y / 100 * (BOTTOM - TOP)) * SCALE


def draw_run_card(run: Run) -> bytes:
    card = Card(run.entry.title[:48], f"{run.track.name}, {formatting.budget(run.budget)}, seed {run.seed}")
    if run.bits_per_byte is not None:
        card.write_number(f"{run.bits_per_byte:.4f}", "bits per byte", INK)
    card.write_footer("loss in nats per token, by tokens")
    if picture := curve_svg.draw_curve(run, curve_svg.load_curve(run)):
        card.draw_curve(picture)
        for dot in picture.dev:
            card.draw_dot(dot.x, dot.y, 10, PAPER, BETTER)
    return card.encode_png()


def draw_entry_card(entry: Entry) -> bytes:
    """Draw an entry's multiplier, and the curve of its best scored run."""
    row = load_standings(entry.track).get_row(entry.pk)
    by = f"by {entry.author}, " if entry.author else ""
    card = Card(shorten_title(entry.title), f"{by}{entry.track.name}, {formatting.budget(entry.track.budget)}")
    if row and row.estimate and row.estimate.cm and not row.is_baseline:
        card.write_number(f"{row.estimate.cm:.3f}", "compute multiplier")
        card.write_footer(f"{format_value(row)}: what the baseline needs, over what it used; {row.run_count} runs")
    elif row:
        card.write_number(f"{row.bits_per_byte:.4f}", "bits per byte")
        card.write_footer("The baseline of the season" if row.is_baseline else "No multiplier yet")
    else:
        card.write_footer(entry.get_state_display().capitalize())
    best = Run.objects.with_entry().filter(entry=entry, bits_per_byte__isnull=False).order_by("bits_per_byte").first()
    if best and (picture := curve_svg.draw_curve(best, curve_svg.load_curve(best))):
        card.draw_curve(picture)
    return card.encode_png()


def draw_track_card(track: Track) -> bytes:
    card = Card(shorten_title(track.name), f"{formatting.budget(track.budget)}, {track.season.name}")
    table = load_standings(track)
    frontier = build_frontier(table, load_records(table), timezone.now())
    if frontier and frontier.standing:
        row = frontier.standing.row
        card.write_number(format_value(row).partition(" ")[0], "the record")
        card.write_footer(f"{row.entry.title[:MAX_TITLE_LENGTH]}: compute multipliers of records over time")
    else:
        card.write_footer("No record yet: the baseline stands")
    if frontier:
        draw_records(card, frontier)
    return card.encode_png()


def draw_records(card: Card, frontier: Frontier) -> None:
    card.draw_axes(frontier.x_ticks, frontier.y_ticks)
    card.draw_line([(0, frontier.baseline), (97, frontier.baseline)], RAW, 2)
    for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", frontier.others):
        card.draw_dot(float(x), float(y), 7, RAW)
    if not frontier.stations:
        return
    points, height = [(0.0, frontier.baseline)], frontier.baseline
    for station in frontier.stations:
        points += [(station.x, height), (station.x, station.y)]
        height = station.y
    card.draw_line([*points, (97.0, height)], BETTER, 4)
    for station in frontier.stations:
        card.draw_dot(station.x, station.y, 12, BETTER)


# --- badges: label and message ----------------------------------------------------------------------------------------


def build_track_badge(table: StandingsTable) -> tuple[str, str]:
    label, records = f"{settings.SITE_NAME} record", load_records(table)
    if not records:
        return label, "none yet"
    row = records[-1].row
    return label, f"{row.entry.title[:MAX_TITLE_LENGTH]}, {get_multiplier(row):.3f}×"


def build_entry_badge(entry: Entry, table: StandingsTable) -> tuple[str, str]:
    """Return the badge of an entry's multiplier with its interval; before there is one, its state."""
    row = table.get_row(entry.pk)
    return "compute multiplier", format_value(row) if row else entry.get_state_display().lower()


def format_value(row: Standing) -> str:
    """1.031 (1.009 to 1.054)"""
    if row.is_baseline:
        return "1 (baseline)"
    if not row.multiplier:
        return f"{row.bits_per_byte:.4f} bits per byte"
    low, high = row.multiplier_low, row.multiplier_high
    return f"{row.multiplier:.3f}" + (f" ({low:.3f} to {high:.3f})" if low and high else "")
