"""Responses of a site and of its proxy become results or errors of one line."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from trainer.cli.site_api import SiteApi
from trainer.errors import UserError


def answer(monkeypatch: pytest.MonkeyPatch, *reply: Any, **content: Any) -> None:
    monkeypatch.setattr(httpx, "request", lambda *arguments, **options: httpx.Response(*reply, **content))


@pytest.mark.parametrize(
    ("status", "content", "sentence"),
    [
        (502, {"html": "<h1>Bad\nGateway</h1>"}, r"refuses it \(502\): <h1>Bad Gateway</h1>"),
        (400, {"json": {"detail": "no such track"}}, r"refuses it \(400\): no such track"),
        (400, {"json": ["wrong"]}, r"refuses it \(400\)"),
        (200, {"html": "<h1>Welcome</h1>"}, "did not answer with JSON"),
        (200, {"json": "wrong"}, "did not answer with JSON"),
    ],
)
def test_other_answer_raises_one_line_error(
    status: int, content: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, status, **content)
    with pytest.raises(UserError, match=sentence) as error:
        SiteApi("https://site.example").get("entries/1")
    assert "\n" not in str(error.value)


def test_run_request_without_an_answer_ends_with_its_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    answer(monkeypatch, 202, json={"request": 7})
    with pytest.raises(UserError, match=r"goes on by itself.*https://site\.example/api/v1/run-requests/7$"):
        SiteApi("https://site.example/", "token").request_run({})
    assert sum(pauses) == 900
    assert capsys.readouterr().err == "waiting for the site to fetch the commit\n"
