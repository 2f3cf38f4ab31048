"""`dailytrain mcp`: errors that say what to do, progress, and tools that are cancelled. The tests of acceptance and of
the site use the tools at real sites."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.fastmcp.exceptions import ToolError

from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY
from trainer.cli import mcp_server, submit
from trainer.cli.main import main as dailytrain
from trainer.distributed.ports import find_free_port
from trainer.errors import UserError

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
    """The part of a tool's context that commands use. It cancels the tool at the first total."""

    def __init__(self, scope: anyio.CancelScope | None = None) -> None:
        self.scope = scope
        self.reports: list[tuple[float, float | None, str]] = []

    async def report_progress(self, progress: float, total: float | None, message: str) -> None:
        self.reports.append((progress, total, message))
        if total and self.scope:
            self.scope.cancel()


def test_cancelled_tool_reports_its_progress_and_interrupts_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_command(tmp_path, SLOW_COMMAND)
    monkeypatch.chdir(tmp_path)

    async def run_cancelled() -> CancellingContext:
        with anyio.CancelScope() as scope:
            context: Any = CancellingContext(scope)
            await mcp_server.run_command(context, "try", "idea")
        return context

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as the server does
    try:
        reports = anyio.run(run_cancelled).reports
    finally:
        signal.signal(signal.SIGINT, before)
    assert reports == [(0, None, "working"), (1, 3, "1 of 3  first")]
    assert (tmp_path / "interrupted").exists()


TALKING_COMMAND = """
import os, sys
sys.stderr.write("1 of 3  first\\r1 of 3  again\\r\\n" + 200_000 * "x" + "\\n2 of 3  second\\n")
sys.exit(f"{os.environ.get('OTHER_SECRET')} {os.environ.get('LC_ALL')}")
"""


def write_command(folder: Path, source: str) -> None:
    (folder / "trainer").mkdir()
    (folder / "trainer/__init__.py").touch()
    (folder / "trainer/cli.py").write_text(source)


def test_progress_rises_and_commands_see_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_command(tmp_path, TALKING_COMMAND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTHER_SECRET", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    context: Any = CancellingContext()
    with pytest.raises(ToolError, match=r"(?s)^1 of 3  first\n.*\nNone C\.UTF-8$"):
        anyio.run(mcp_server.run_command, context, "try", "idea")
    counts, totals, lines = zip(*context.reports, strict=True)
    assert sorted(set(counts)) == list(counts)
    assert (totals, counts[3] // 1) == ((3, 3, None, 3, None), 2)
    assert lines[1] == "1 of 3  again"


def test_terminated_server_interrupts_its_command(tmp_path: Path) -> None:
    write_command(tmp_path, SLOW_COMMAND)
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from trainer.cli.mcp_server import main; main()"
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "try_idea", "arguments": {"name": "idea"}, "_meta": {"progressToken": 1}}
    with subprocess.Popen(
        [sys.executable, "-c", code, "--server", "http://127.0.0.1:1"], cwd=tmp_path, stdin=PIPE, stdout=PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        while "1 of 3" not in server.stdout.readline():
            assert server.poll() is None
        server.terminate()
        assert server.wait() == 128 + signal.SIGTERM
    assert (tmp_path / "interrupted").exists()


def test_start_makes_a_branch_of_the_sites_main_and_touches_no_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "ada")
    site, fork, folder = (str(tmp_path / name) for name in ("site", "fork", "folder"))
    submit.run_git("init", "--quiet", "-b", "main", site)
    submit.run_git("-C", site, "commit", "--quiet", "--allow-empty", "-m", "First")
    submit.run_git("clone", "--quiet", site, fork)
    (tmp_path / "site/notes.txt").touch()
    submit.run_git("-C", site, "add", "notes.txt")
    submit.run_git("-C", site, "commit", "--quiet", "-m", "Newer")
    Path(folder).mkdir()
    monkeypatch.chdir(folder)
    mcp_server.start_branch(fork, site, "idea")
    assert submit.run_git("log", "-1", "--format=%s", "idea") == "Newer"
    with pytest.raises(UserError, match=r"is a checkout of .*fork: start `dailytrain mcp` in an empty folder"):
        mcp_server.start_branch(site, site, "second")
    Path("notes.txt").write_text("Work.")
    with pytest.raises(UserError, match=r"such as notes\.txt: commit them, or put them aside"):
        mcp_server.start_branch(fork, site, "second")
    submit.run_git("restore", "notes.txt")
    Path("trainer/models").mkdir(parents=True)
    Path("trainer/models/idea.py").touch()
    with pytest.raises(UserError, match="trainer/models has files that are not committed"):
        mcp_server.start_branch(fork, site, "second")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="neither empty nor a checkout"):
        mcp_server.start_branch(fork, site, "second")


def test_tool_errors_say_what_to_do(tmp_path: Path) -> None:
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
    assert "did not answer" in start
    assert "needs a token of the site: --token or $DAILYTRAIN_API_TOKEN" in status
    assert "dailytrain trace: " in trace
    assert "smear" in trace, "the architectures are listed"
    assert "needs a token of the site" in submit


def test_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "trainer.cli.mcp_server")
    monkeypatch.setitem(sys.modules, "mcp.server.fastmcp", None)
    assert dailytrain(["mcp", "--server", "https://site.example"]) == 2
    assert capsys.readouterr().err == "dailytrain mcp: needs the package mcp: pip install 'dailytrain[mcp]'\n"
