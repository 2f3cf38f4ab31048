"""Import of records that another leaderboard reported, marked as not verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard.models import ReportedRecord, Track

pytestmark = pytest.mark.django_db
HISTORY: dict[str, Any] = {
    "source": "Another speedrun",
    "measures": "minutes to 3.28 nats per token on eight H100",
    "records": [
        {"date": "2025-01-02", "title": "First", "author": "ada", "value": 45.0, "url": "https://example.org/1"},
        {"date": "2025-02-03", "title": "<b>Second</b>", "value": 31.4},
    ],
}


def import_records(tmp_path: Path, history: object, *options: str) -> str:
    file = tmp_path / "history.json"
    file.write_text(history if isinstance(history, str) else json.dumps(history))
    from io import StringIO

    out = StringIO()
    call_command("import_records", str(file), *options, stdout=out)
    return out.getvalue()


def test_imported_records_are_shown_as_reported_outside_the_board(client: Client, track: Track, tmp_path: Path) -> None:
    assert import_records(tmp_path, HISTORY).startswith("2 new, 0 known")
    page = " ".join(client.get("/tracks/small/reported/").content.decode().split())
    assert page.count("reported, not verified") == 3
    assert "&lt;b&gt;Second&lt;/b&gt;" in page
    assert client.get("/api/v1/tracks/small/board").json() == []
    records = client.get("/api/v1/tracks/small/reported").json()
    assert [(record["title"], record["verified"]) for record in records] == [("First", False), ("<b>Second</b>", False)]


def test_records_imported_twice_are_stored_once(track: Track, tmp_path: Path) -> None:
    import_records(tmp_path, HISTORY)
    assert import_records(tmp_path, HISTORY).startswith("0 new, 2 known")
    assert ReportedRecord.objects.count() == 2


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ("{", "the file"),
        ({**HISTORY, "records": []}, "records"),
        ({**HISTORY, "records": [{"date": "soon", "title": "x", "value": 1}]}, "records.0.date"),
        ({**HISTORY, "records": [{"date": "2025-01-01", "title": "x", "value": "NaN"}]}, "records.0.value"),
        ({**HISTORY, "records": [{"date": "2025-01-01", "title": "x", "value": 1, "url": "javascript:x"}]}, "url"),
        ({**HISTORY, "verified": True}, "verified"),
    ],
)
def test_invalid_history_is_refused_in_one_line(track: Track, tmp_path: Path, history: object, message: str) -> None:
    with pytest.raises(CommandError, match=message) as error:
        import_records(tmp_path, history)
    assert "\n" not in str(error.value)
    assert not ReportedRecord.objects.exists()


def test_import_with_unknown_track_or_file_fails(track: Track, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"Unknown track\. Tracks: small"):
        import_records(tmp_path, HISTORY, "--track", "large")
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_records", str(tmp_path / "none.json"))
