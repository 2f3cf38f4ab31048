"""`dailytrain mcp --server URL`: the commands and a site's API as tools of the Model Context Protocol, over stdio.

Commands run as processes in the current folder, so that they load what the agent has written there. What they print on
standard error is the progress of the tool; when a tool is cancelled, its command is interrupted as by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError

from trainer.cli import Parser
from trainer.cli.site_api import TOKEN_VARIABLE, SiteApi
from trainer.cli.submit import run_git
from trainer.errors import ExitCode, UserError

COMMAND = "dailytrain mcp"
INSTRUCTIONS = """A competition for architectures of language models: who learns more from the same compute?
Call `rules`, then `start`; `search` before you build; then `smoke`, `trace`, `try_idea` and `submit`; `status` has the
verdict."""
NEXT_STEPS = """Write trainer/models/{name}.py and add its line to ARCHITECTURES in trainer/models/__init__.py.
trainer/models/base.py is the contract; `example` is an entry. Then call smoke("{name}")."""
STOP_SECONDS = 20.0
BOARD_FIELDS = ("entry", "title", "architecture", "author", "bits_per_byte", "trust", "parameters", "estimate")
UNREAD = {"smoke": None, "graph": None, "graph_files": None}
"""Parts of answers that have thousands of numbers; `trace` returns those of a graph."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog=COMMAND, description="Serve the commands and a site to a coding agent, over stdio.")
    add = parser.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--token", default=os.environ.get(TOKEN_VARIABLE, ""), help=f"of the site (or ${TOKEN_VARIABLE})")
    add("--repository", default="", metavar="URL", help="a fork that you may push to (the site's repository)")
    options = parser.parse_args(argv)
    build_server(SiteApi(options.server, options.token), options.repository).run()
    return ExitCode.OK


def build_server(api: SiteApi, repository: str) -> FastMCP:
    """Return the server with its tools. Their errors say what to do."""
    server = FastMCP("dailytrain", instructions=INSTRUCTIONS, log_level="WARNING")

    async def get(path: str) -> Any:
        return await asyncio.to_thread(api.get, path)

    @server.tool()
    async def rules() -> dict[str, str]:
        """Read how to enter, every rule with its check, what this site has, and its tracks."""
        files = {name: read_text(name) for name in ("AGENTS.md", "docs/reference/rules.md")}
        files = {name: text or "Call `start` first: it is a file of the repository." for name, text in files.items()}
        return {**files, "site": await asyncio.to_thread(api.get_text, "llms.txt")}

    @server.tool()
    async def start(name: str) -> dict[str, Any]:
        """Make this folder a checkout of the repository, with a new branch `name` of main for one idea."""
        source = repository or (await get(""))["repository"]
        if not source:
            raise ToolError(f"the site names no repository: `{COMMAND}` needs --repository")
        await asyncio.to_thread(start_branch, source, name)
        example = read_text("trainer/models/smear.py")
        return {"folder": str(Path.cwd()), "next": NEXT_STEPS.format(name=name), "example": example}

    @server.tool()
    async def board(track: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """List a track's best runs with the multipliers of their entries; without a track, list the tracks."""
        rows = await get(f"tracks/{track}/board" if track else "tracks")
        return [{name: row[name] for name in BOARD_FIELDS} for row in rows[:limit]] if track else rows

    @server.tool()
    async def search(pattern: str = "", like: str = "", text: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """Find entries, failures too, with their multipliers: by an operator or a pattern (aten::cumsum), by likeness
        to an entry's id or a graph's hash (nearest first), by words of title and hypothesis."""
        query = {"pattern": pattern, "like": like, "text": text, "limit": limit}
        return (await get(f"entries?{urlencode(query)}"))["items"]  # type: ignore[no-any-return]

    @server.tool()
    async def trace(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Export an architecture as graphs, into graph/NAME: its costs, `hash`, `canonical_hash` and `patterns`.

        `options` of this and other commands are their flags; ["--help"] prints them.
        """
        return await run_command(context, "trace", name, "--out", f"graph/{name}", "--json", *(options or []))

    @server.tool()
    async def smoke(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Check on this machine, in minutes, whether an architecture traces, fits, learns and sees no later token."""
        found = await run_command(context, "smoke", name, "--json", *(options or ["--model.depth", "4"]))
        return {**found, **UNREAD} if isinstance(found, dict) else found

    @server.tool()
    async def try_idea(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Measure the compute multiplier on this machine, against a small ladder of the baseline; takes minutes to an
        hour, and continues when it is called again. --budget, --rungs and --seeds make it shorter."""
        return await run_command(context, "try", name, "--json", *(options or []))

    @server.tool()
    async def submit(
        name: str, track: str, title: str, hypothesis: str, context: Context, based_on: int | None = None
    ) -> Any:
        """Commit what changed in trainer/models/, push the branch, and request a run on a track of the site."""
        flags = ["--architecture", name, "--track", track, f"--title={title}", f"--hypothesis={hypothesis}"]
        flags += ["--based-on", str(based_on)] if based_on else []
        return await run_command(context, "submit", "--push", "--json", "--server", api.server, *flags, token=api.token)

    @server.tool()
    async def status(entry: int | None = None) -> dict[str, Any]:
        """Read an entry's stations, runs and verdict; without an entry, your hours of a day and places in the queue."""
        if entry is None:
            api.check_token()
            return await get("me")  # type: ignore[no-any-return]
        verdict = await asyncio.to_thread(api.get_text, f"api/v1/entries/{entry}/summary")
        return {**await get(f"entries/{entry}"), **UNREAD, "verdict": verdict}

    return server


def read_text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def start_branch(source: str, name: str) -> None:
    """Clone the repository into the current folder, unless it is a checkout, and begin a branch of its main."""
    if not Path(".git").exists():
        if any(Path().iterdir()):
            raise UserError(f"{Path.cwd()} is neither empty nor a checkout: start `{COMMAND}` in an empty folder")
        run_git("clone", "--quiet", source, ".")
    run_git("fetch", "--quiet", "origin")
    run_git("switch", "--quiet", "--no-track", "--create", name, "origin/main")


# --- commands ---------------------------------------------------------------------------------------------------------


async def run_command(context: Context, *arguments: str, token: str = "") -> Any:
    """Run a command in a process; return its JSON, or its text. Raise `ToolError` with its last lines."""
    command, environment = [sys.executable, "-m", "trainer.cli", *arguments], {**os.environ, TOKEN_VARIABLE: token}
    pipes = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes, env=environment, start_new_session=True)
    try:
        printed, lines = await asyncio.gather(process.stdout.read(), report_lines(process, context))
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await interrupt(process)
    if code != ExitCode.OK and not (code == ExitCode.MODEL_ERROR and printed):  # a failed smoke test is an answer
        raise ToolError("\n".join(lines[-5:]) or f"{arguments[0]} ended with {code}")
    try:
        return json.loads(printed)
    except ValueError:
        return printed.decode(errors="replace")


async def report_lines(process: Process, context: Context) -> list[str]:
    """Report each line of standard error, which may begin with `2 of 12`, and return all."""
    assert process.stderr is not None
    lines, count = [], 0
    async for line in process.stderr:
        lines.append(line.decode(errors="replace").strip())
        found = re.match(r"(\d+) of (\d+)\b", lines[-1])
        count = int(found[1]) if found else count
        await context.report_progress(count, int(found[2]) if found else None, lines[-1])
    return lines


async def interrupt(process: Process) -> None:
    """Interrupt a command that still runs, as Ctrl-C does; kill it if it goes on."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is None:
            os.killpg(process.pid, number)
            with anyio.move_on_after(STOP_SECONDS):
                await process.wait()
