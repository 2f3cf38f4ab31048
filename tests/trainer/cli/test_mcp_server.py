"""`dailytrain mcp`: errors that say what to do, progress, and tools that are cancelled. The tests of acceptance and of
the site use the tools at real sites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY
from trainer.cli import mcp_server
from trainer.cli.main import main as dailytrain
from trainer.distributed.ports import find_free_port

pytestmark = pytest.mark.processes

SLOW_COMMAND = """
import sys, time
try:
    print("working\\n1 of 3  first", file=sys.stderr)
    time.sleep(600)
except KeyboardInterrupt:
    open("interrupted", "w").close()
"""


class CancellingContext:
    """The part of a tool's context that commands use. It cancels the tool at the first progress."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.scope = scope
        self.reports: list[tuple[float, float | None, str]] = []

    async def report_progress(self, progress: float, total: float | None, message: str) -> None:
        self.reports.append((progress, total, message))
        if total:
            self.scope.cancel()


def test_cancelled_tool_reports_its_progress_and_interrupts_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer").mkdir()
    for name, source in (("__init__", ""), ("cli", SLOW_COMMAND)):
        (tmp_path / "trainer" / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)

    async def run_cancelled() -> CancellingContext:
        with anyio.CancelScope() as scope:
            context: Any = CancellingContext(scope)
            await mcp_server.run_command(context, "try", "idea")
        return context

    assert anyio.run(run_cancelled).reports == [(0, None, "working"), (1, 3, "1 of 3  first")]
    assert (tmp_path / "interrupted").exists()


def test_tool_errors_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    command = ["-m", "trainer.cli", "mcp", "--server", f"http://127.0.0.1:{find_free_port()}"]
    server = StdioServerParameters(
        command=sys.executable,
        args=[*command, "--repository", str(tmp_path)],
        cwd=tmp_path,
        env=build_clean_environment(PYTHONPATH=str(REPOSITORY)),
    )

    async def call_tools() -> list[str]:
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            calls: list[tuple[str, dict[str, Any]]] = [
                *(("board", {}), ("start", {"name": "idea"}), ("status", {}), ("trace", {"name": "nothing"})),
                ("submit", {"name": "idea", "track": "small", "title": "An idea", "hypothesis": "It helps."}),
            ]
            answers = [await session.call_tool(name, arguments) for name, arguments in calls]
            assert all(answer.isError for answer in answers)
            return [getattr(answer.content[0], "text", "") for answer in answers]

    board, start, status, trace, submit = anyio.run(call_tools)
    assert "did not answer" in board
    assert "neither empty nor a checkout: start `dailytrain mcp` in an empty folder" in start
    assert "needs a token of the site: --token or $DAILYTRAIN_API_TOKEN" in status
    assert "dailytrain trace: " in trace
    assert "smear" in trace, "the architectures are listed"
    assert "not a git repository" in submit


def test_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "trainer.cli.mcp_server")
    monkeypatch.setitem(sys.modules, "mcp.server.fastmcp", None)
    assert dailytrain(["mcp", "--server", "https://site.example"]) == 2
    assert capsys.readouterr().err == "dailytrain mcp: needs the package mcp: pip install 'dailytrain[mcp]'\n"
