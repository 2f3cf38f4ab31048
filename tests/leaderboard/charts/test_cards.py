"""Link-preview cards of runs, and their curves as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client
from PIL import Image

from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import CurvePoint, Entry, Run
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_run_card_has_link_preview_size_and_curve(client: Client) -> None:
    run = scene.create_night_board()["train"]
    response = client.get(f"/runs/{run.pk}/curve.png")
    assert response["Content-Type"] == "image/png"
    image = Image.open(io.BytesIO(response.content))
    assert image.size == (1200, 630)
    colors = image.convert("RGB").crop((96, 176, 1152, 530)).getcolors(2**20)
    assert colors
    dark_pixels = sum(count for count, color in colors if sum(color) < 300)
    assert dark_pixels > 500, "the curve is missing"
    assert len(response.content) < 200_000


def test_run_card_is_redrawn_only_after_a_change(client: Client) -> None:
    run = scene.create_night_board()["train"]
    first = client.get(f"/runs/{run.pk}/curve.png")
    assert client.get(f"/runs/{run.pk}/curve.png", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    assert client.get(f"/runs/{run.pk}/curve.png", headers={"If-None-Match": first["ETag"]}).status_code == 200


def test_curve_csv_has_both_series_and_all_points(client: Client) -> None:
    run = scene.create_night_board()["train"]
    response = client.get(f"/runs/{run.pk}/curve.csv")
    assert response["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    points = run.points.filter(series=CurvePoint.Series.DEV)
    assert len([row for row in rows if row["series"] == "dev"]) == points.count() > 0
    last = run.points.filter(series=CurvePoint.Series.TRAIN).order_by("step").last()
    assert last
    last_row = [row for row in rows if row["series"] == "train"][-1]
    assert (int(last_row["step"]), int(last_row["tokens"])) == (last.step, last.tokens)
    assert float(last_row["loss_nats_per_token"]) == last.loss


def test_run_without_points_has_card_and_empty_csv(client: Client) -> None:
    night = scene.create_night_board()
    queued = Run.objects.filter(state=Run.State.QUEUED).first()
    assert queued
    assert night
    assert draw_run_card(queued).startswith(b"\x89PNG")
    assert len(write_curve_csv(queued).splitlines()) == 1
    assert client.get("/runs/999999/curve.png").status_code == 404


def test_card_with_markup_in_its_title_is_drawn(client: Client) -> None:
    run = scene.create_night_board()["train"]
    blank = client.get(f"/runs/{run.pk}/curve.png").content
    Entry.objects.filter(pk=run.entry_id).update(title="</text><script>&amp;\x1b]]>\uffff")
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    drawn = client.get(f"/runs/{run.pk}/curve.png")
    assert drawn.content.startswith(b"\x89PNG")
    assert drawn.content != blank
