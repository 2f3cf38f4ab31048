"""All public pages by name, for the browser tests."""

from __future__ import annotations

from typing import Any


def addresses(night: dict[str, Any]) -> dict[str, str]:
    """Return the paths of the pages of `scene.create_night_board()`."""
    best, train, entry = night["best"], night["train"], night["entry"]
    return {
        "board": "/",
        "board, searched": "/?q=nothing+like+this",
        "calendar": "/calendar/",
        "finished run": best.get_absolute_url(),
        "running run": train.get_absolute_url(),
        "entry": entry.get_absolute_url(),
        "compare": f"/compare/?runs={best.pk},{train.pk}",
        "comparing nothing": "/compare/",
        "queue": "/queue/",
        "nodes": "/nodes/",
        "sponsors": "/sponsors/",
        "campaigns": "/campaigns/",
        "campaign": night["campaign"].get_absolute_url(),
        "try it": "/try/",
        "about": "/about/",
        "learned": "/learned/",
        "rulings": "/rulings/",
        "contributors": "/contributors/",
        "acknowledgements": "/acknowledgements/",
        "sign in": "/accounts/login/",
    }
