"""A run's curve as files: a picture for chats and link previews, a table for everything else."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from csv import writer
from itertools import pairwise

from django.conf import settings
from PIL import Image, ImageDraw, ImageFont

from leaderboard import formatting
from leaderboard.charts import curve_svg
from leaderboard.models import Run

WIDTH, HEIGHT = 1200, 630
"""The shape that link previews are cut to."""
SCALE = 2
"""Drawn larger and made smaller again: that is what makes lines smooth."""
LEFT, TOP, RIGHT, BOTTOM = 96, 176, 1152, 530
"""The curve's own place."""
PAPER, INK, QUIET, LINE, RAW, BETTER = "#ffffff", "#14181b", "#56606a", "#dde1e4", "#b9c1c8", "#0b5cad"
"""As in train.css, by day: nobody knows the background of a chat."""


def csv(run: Run) -> bytes:
    """Return the points of both series by step, with everything that was said of them; losses are nats per token. Of a
    long series 2,000 are left, its lowest and highest among them."""
    table = io.StringIO()
    out = writer(table, lineterminator="\n")
    out.writerow(["series", *("loss_nats_per_token" if name == "loss" else name for name in curve_svg.Point._fields)])
    for name, points in zip(("train", "dev"), curve_svg.points_of(run), strict=True):
        out.writerows([name, *("" if value is None else value for value in point)] for point in points)
    return table.getvalue().encode()


def png(run: Run) -> bytes:
    """Return the curve with what came of the run; a run without points has the words only."""
    image, draw = new_image()
    draw_labels(draw, run)
    picture = curve_svg.picture(run, curve_svg.curve_of(run))
    if picture:
        draw_axes(draw, picture.x_ticks, picture.y_ticks)
        line(draw, dots(picture.raw), RAW, 1)
        line(draw, dots(picture.smooth), INK, 3)
        for dot in picture.dev:
            x, y = place(dot.x, dot.y)
            draw.ellipse([x - 10, y - 10, x + 10, y + 10], fill=PAPER, outline=BETTER, width=4)
    return encode_png(image)


def draw_labels(draw: ImageDraw.ImageDraw, run: Run) -> None:
    write(draw, 48, 40, run.entry.title[:48], 44, INK)
    write(draw, 48, 104, f"{run.track.name}, {formatting.budget(run.budget)}, seed {run.seed}", 24, QUIET)
    if run.bits_per_byte is not None:
        write(draw, WIDTH - 48, 40, f"{run.bits_per_byte:.4f}", 52, INK, "ra")
        write(draw, WIDTH - 48, 104, "bits per byte", 24, QUIET, "ra")
    write(draw, 48, HEIGHT - 24, "loss in nats per token, by tokens", 20, QUIET, "ls")
    write(draw, WIDTH - 48, HEIGHT - 24, settings.SITE_NAME, 20, QUIET, "rs")


def draw_axes(draw: ImageDraw.ImageDraw, x_ticks: Sequence[curve_svg.Tick], y_ticks: Sequence[curve_svg.Tick]) -> None:
    for tick in y_ticks:
        _, y = place(0, tick.at)
        draw.line([LEFT * SCALE, y, RIGHT * SCALE, y], fill=LINE, width=SCALE)
        write(draw, LEFT - 12, y / SCALE, tick.label, 20, QUIET, "rm")
    for tick in x_ticks:
        x, y = place(tick.at, 100)
        write(draw, x / SCALE, y / SCALE + 12, tick.label, 20, QUIET, "ma")


def new_image() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
    return image, ImageDraw.Draw(image)


def encode_png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return out.getvalue()


def write(draw: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, color: str, anchor: str = "la") -> None:
    font = ImageFont.load_default(size * SCALE)  # Pillow's own: a container has no fonts
    draw.text((x * SCALE, y * SCALE), plain(text), fill=color, font=font, anchor=anchor)


def plain(text: str) -> str:
    """Return the text without what that font lacks: 10¹² is 10^12."""
    return re.sub(f"[{POWERS}]+", lambda found: "^" + found[0].translate(LEVEL), text.replace(formatting.SPACE, " "))


POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
LEVEL = str.maketrans(POWERS, "0123456789-")


def dots(line: curve_svg.Way) -> list[tuple[float, float]]:
    """Return the points of a `Picture`'s line, where they are drawn."""
    return [place(x, y) for x, y in zip(*(of.tolist() for of in line), strict=True)]


def line(draw: ImageDraw.ImageDraw, points: list[tuple[float, float]], color: str, width: int) -> None:
    for start, end in pairwise(points):
        draw.line([start, end], fill=color, width=width * SCALE)


def place(x: float, y: float) -> tuple[float, float]:
    """Return where per cent of the curve's own width and height are."""
    return (LEFT + x / 100 * (RIGHT - LEFT)) * SCALE, (TOP + y / 100 * (BOTTOM - TOP)) * SCALE
