"""`dailytrain mcp --server URL`: the commands and a site's API as tools of the Model Context Protocol, over stdio.

Commands run as processes in the agent's folder, so that they load what it has written there. What they print on
standard error is the progress of the tool; when a tool is cancelled, its command is interrupted as by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError

from trainer.cli import Parser
from trainer.cli.site_api import TOKEN_VARIABLE, SiteApi
from trainer.cli.submit import run_git
from trainer.errors import ExitCode, UserError

COMMAND = "dailytrain mcp"
INSTRUCTIONS = """Enter an architecture for language models in a competition: who learns more from the same compute?
Call `rules`, then `start`; search before you build; then `smoke`, `trace`, `try_idea`, `submit`, and `status` until
there is a verdict."""
NEXT_STEPS = """Write trainer/models/{name}.py and add its line to ARCHITECTURES in trainer/models/__init__.py.
trainer/models/base.py is the contract; `example` is an entry. Then call smoke("{name}")."""
STOP_SECONDS = 20.0
MAX_ERROR = 2000  # characters
BOARD_FIELDS = ("entry", "title", "architecture", "author", "bits_per_byte", "trust", "parameters")
ESTIMATE_FIELDS = ("rank", "cm", "low", "high", "verdict")


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog=COMMAND, description="Serve the commands and a site to an agent, over standard input and output."
    )
    add = parser.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--token", default=os.environ.get(TOKEN_VARIABLE, ""), help=f"of the site (or ${TOKEN_VARIABLE})")
    add("--repository", default="", metavar="URL", help="a fork that you may push to (the site's repository)")
    add("--home", type=Path, default=Path(), metavar="DIR", help="where the agent works (the current folder)")
    options = parser.parse_args(argv)
    if not options.home.is_dir():
        raise UserError(f"--home: there is no folder {options.home}")
    os.chdir(options.home)
    build_server(SiteApi(options.server, options.token), options.repository).run()
    return ExitCode.OK


def build_server(api: SiteApi, repository: str) -> FastMCP:
    """Return the server with its tools. Errors are answers that say what to do."""
    server = FastMCP("dailytrain", instructions=INSTRUCTIONS, log_level="WARNING")

    async def ask(path: str) -> Any:
        return await anyio.to_thread.run_sync(api.get, path)

    @server.tool()
    async def rules() -> dict[str, Any]:
        """Read how to enter, every rule with its check, what this site has, and its tracks."""
        start = await ask("")
        texts = {name: read_text(name) for name in ("AGENTS.md", "docs/reference/rules.md")}
        known = {name: text or "Call `start` first: it is a file of the repository." for name, text in texts.items()}
        return {**known, "site": await anyio.to_thread.run_sync(api.get_text, "/llms.txt"), "places": start["places"]}

    @server.tool()
    async def start(name: str) -> dict[str, Any]:
        """Make this folder a checkout of the repository, with a new branch `name` of main for one idea."""
        source = repository or (await ask(""))["repository"]
        if not source:
            raise ToolError(f"the site names no repository: start `{COMMAND}` with --repository")
        await anyio.to_thread.run_sync(start_branch, source, name)
        return {
            "folder": str(Path.cwd()),
            "next": NEXT_STEPS.format(name=name),
            "files": sorted(str(path) for path in Path("trainer/models").glob("*.py")),
            "example": read_text("trainer/models/smear.py"),
        }

    @server.tool()
    async def board(track: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """List a track's best runs with the multipliers of their entries; without a track, list the tracks."""
        if not track:
            return await ask("tracks")  # type: ignore[no-any-return]
        return [shorten_row(row) for row in (await ask(f"tracks/{track}/board"))[:limit]]

    @server.tool()
    async def search(pattern: str = "", like: str = "", text: str = "", limit: int = 20) -> list[dict[str, Any]]:
        """Find entries, failures too, with their multipliers: by an operator or a pattern (aten::cumsum), by likeness
        to an entry's id or a graph's hash (nearest first), by words of title and hypothesis."""
        query = {"pattern": pattern, "like": like, "text": text, "limit": limit}
        return (await ask(f"entries?{urlencode(query)}"))["items"]  # type: ignore[no-any-return]

    @server.tool()
    async def trace(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Export an architecture as graphs, into graph/NAME: its costs, `hash`, `canonical_hash` and `patterns`.

        `options` of this and other commands are their flags; ["--help"] prints them.
        """
        return await run_command(
            context, ["trace", name, "--out", f"graph/{name}", "--json", *(options or ["--depth", "4"])]
        )

    @server.tool()
    async def smoke(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Check on this machine, in minutes, whether an architecture traces, fits, learns and sees no later token."""
        found = await run_command(context, ["smoke", name, "--json", *(options or ["--model.depth", "4"])])
        return {**found, "graph": None} if isinstance(found, dict) else found  # `trace` shows it

    @server.tool()
    async def try_idea(name: str, context: Context, options: list[str] | None = None) -> Any:
        """Measure the compute multiplier on this machine, against a small ladder of the baseline; takes minutes to an
        hour, and continues when it is called again. --budget, --rungs and --seeds make it shorter."""
        return await run_command(context, ["try", name, "--json", *(options or [])])

    @server.tool()
    async def submit(
        name: str, track: str, title: str, hypothesis: str, context: Context, based_on: int | None = None
    ) -> Any:
        """Commit what changed in trainer/models/, push the branch to the repository, and request a run on a track."""
        arguments = ["submit", "--push", "--json", "--server", api.server, "--architecture", name, "--track", track]
        arguments += [f"--title={title}", f"--hypothesis={hypothesis}"]
        arguments += ["--based-on", str(based_on)] if based_on else []
        return await run_command(context, arguments, {TOKEN_VARIABLE: api.token})

    @server.tool()
    async def status(entry: int | None = None) -> dict[str, Any]:
        """Read an entry's stations, runs and verdict; without an entry, your hours of a day and places in the queue."""
        if entry is None:
            api.check_token()
            return await ask("me")  # type: ignore[no-any-return]
        found = await ask(f"entries/{entry}")
        verdict = await anyio.to_thread.run_sync(api.get_text, f"/api/v1/entries/{entry}/summary")
        return {**found, "smoke": None, "graph": None, "graph_files": None, "verdict": verdict}

    return server


def read_text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def shorten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an agent needs of a run on the board."""
    estimate = row["estimate"] or {}
    return {name: row[name] for name in BOARD_FIELDS} | {name: estimate.get(name) for name in ESTIMATE_FIELDS}


def start_branch(source: str, name: str) -> None:
    """Clone the repository into the current folder, unless it is a checkout, and begin a branch of its main."""
    if not Path(".git").exists():
        if any(Path().iterdir()):
            raise UserError(f"{Path.cwd()} is neither empty nor a checkout: start `{COMMAND}` in an empty folder")
        run_git("clone", "--quiet", source, ".")
    run_git("fetch", "--quiet", "origin")
    run_git("switch", "--quiet", "--no-track", "--create", name, "origin/main")


# --- commands ---------------------------------------------------------------------------------------------------------


async def run_command(context: Context, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
    """Run a command in a process, and return its JSON, or its text. Raise `ToolError` with its last line."""
    lines: list[str] = []
    process = await anyio.open_process(
        [sys.executable, "-m", "trainer.cli", *arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report_lines, process, context, lines)
            printed = "".join([text async for text in TextReceiveStream(process.stdout)])
        code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await stop(process)
    if code != ExitCode.OK and not (code == ExitCode.MODEL_ERROR and printed):  # a failed smoke test is an answer
        raise ToolError("\n".join(lines)[-MAX_ERROR:] or f"{arguments[0]} ended with {code}")
    try:
        return json.loads(printed)
    except ValueError:
        return printed


async def report_lines(process: Process, context: Context, lines: list[str]) -> None:
    """Report each line of standard error, which may begin with `2 of 12`; keep the last ones in `lines`."""
    assert process.stderr is not None
    rest, count = "", 0
    async for text in TextReceiveStream(process.stderr, errors="replace"):
        *whole, rest = (rest + text).split("\n")
        for line in filter(None, map(str.strip, whole)):
            lines[:] = [*lines[-9:], line]
            found = re.match(r"(\d+) of (\d+)\b", line)
            count = int(found[1]) if found else count
            await context.report_progress(count, int(found[2]) if found else None, line)


async def stop(process: Process) -> None:
    """Interrupt a command that still runs, as by Ctrl-C; kill what is left of it."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGINT)
        with anyio.move_on_after(STOP_SECONDS):
            await process.wait()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    await process.aclose()
