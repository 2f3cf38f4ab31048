"""Cards of runs, and their curves as CSV."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client
from PIL import Image

from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.charts.images import draw_run_card, replace_superscripts
from leaderboard.models import CurvePoint, Run
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_the_picture_has_the_shape_of_a_link_preview_and_a_curve_on_it(client: Client) -> None:
    run = scene.night()["train"]
    answer = client.get(f"/runs/{run.pk}/curve.png")
    assert answer["Content-Type"] == "image/png"
    picture = Image.open(io.BytesIO(answer.content))
    assert picture.size == (1200, 630)
    colours = picture.convert("RGB").crop((96, 176, 1152, 530)).getcolors(2**20)
    assert colours
    dark = sum(count for count, colour in colours if sum(colour) < 300)
    assert dark > 500, "the line"
    assert len(answer.content) < 200_000


def test_it_is_drawn_anew_when_the_run_changes_and_not_before(client: Client) -> None:
    run = scene.night()["train"]
    first = client.get(f"/runs/{run.pk}/curve.png")
    assert client.get(f"/runs/{run.pk}/curve.png", headers={"If-None-Match": first["ETag"]}).status_code == 304
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    assert client.get(f"/runs/{run.pk}/curve.png", headers={"If-None-Match": first["ETag"]}).status_code == 200


def test_the_table_has_both_series_and_every_number(client: Client) -> None:
    run = scene.night()["train"]
    answer = client.get(f"/runs/{run.pk}/curve.csv")
    assert answer["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    points = run.points.filter(series=CurvePoint.Series.DEV)
    assert len([row for row in rows if row["series"] == "dev"]) == points.count() > 0
    last = run.points.filter(series=CurvePoint.Series.TRAIN).order_by("step").last()
    assert last
    mine = [row for row in rows if row["series"] == "train"][-1]
    assert (int(mine["step"]), int(mine["tokens"])) == (last.step, last.tokens)
    assert float(mine["loss_nats_per_token"]) == last.loss


def test_a_run_without_points_has_words_and_an_empty_table(client: Client) -> None:
    night = scene.night()
    queued = Run.objects.filter(state=Run.State.QUEUED).first()
    assert queued
    assert night
    assert draw_run_card(queued).startswith(b"\x89PNG")
    assert len(write_curve_csv(queued).splitlines()) == 1
    assert client.get("/runs/999999/curve.png").status_code == 404


def test_it_writes_what_its_letters_cannot() -> None:
    assert replace_superscripts("1.25\u00a0×\u00a010¹² FLOPs") == "1.25 × 10^12 FLOPs"
