"""The admin's form of a track: a swarm's sizes are numbers instead of JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client

from leaderboard.models import Season, Track
from leaderboard.schedule.track_templates import create_track


@pytest.fixture
def swarm_track(db: None) -> Track:
    season = Season.objects.create(name="One", corpus="python-library", tokenizer="bpe:512")
    return create_track("swarm-gpt2", season)


def test_swarm_form_shows_and_saves_sizes_as_numbers(swarm_track: Track, admin_client: Client) -> None:
    form = open_form(admin_client, swarm_track)
    sizes = dict(re.findall(r'name="swarm_(\w+)" value="(\d+)"', str(form["swarm"])))
    assert sizes == {"stages": "2", "workers": "4", "minimum": "1", "patience": "30"}
    post_form(admin_client, swarm_track, form, {"swarm_stages": "3", "swarm_patience": ""})
    swarm_track.refresh_from_db()
    assert swarm_track.swarm == {"stages": 3, "workers": 4, "minimum": 1}


def open_form(client: Client, track: Track) -> Any:
    return client.get(f"/admin/leaderboard/track/{track.pk}/change/").context["adminform"].form


def post_form(client: Client, track: Track, form: Any, changes: dict[str, str]) -> None:
    """Send the form as a browser would, with some fields changed."""
    form_data: dict[str, Any] = {"hours-TOTAL_FORMS": 0, "hours-INITIAL_FORMS": 0}
    for name in form.fields:
        value = form[name].value()
        if name == "swarm":
            form_data |= {f"swarm_{part}": number for part, number in (value or {}).items()}
        elif isinstance(value, dict | list):
            form_data[name] = json.dumps(value)
        elif value is not None and value is not False:
            form_data[name] = value
    reply = client.post(f"/admin/leaderboard/track/{track.pk}/change/", form_data | changes)
    assert reply.status_code == 302, reply.context["adminform"].form.errors
