"""An agent that has nothing but the tools of `dailytrain mcp` gets from an empty folder to a scored entry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent

from tests.support.live_site import LiveSite, live_site
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NAME = "halfsmear"
AUTHOR = {f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Agent:
    """Knows what tools answer, and can write files."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.progress: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> Any:
        answer = await self.session.call_tool(tool, arguments, progress_callback=self.note_progress)
        texts = [block.text for block in answer.content if isinstance(block, TextContent)]
        assert not answer.isError, texts
        if answer.structuredContent is not None:
            return answer.structuredContent.get("result", answer.structuredContent)
        return json.loads(texts[0])

    async def note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append(message or "")

    async def enter_idea(self) -> dict[str, Any]:
        """Change the example a little, check it, enter it, and return the status of the scored entry."""
        assert "Call `start` first" in (await self.call("rules"))["AGENTS.md"]
        started = await self.call("start", name=NAME)
        assert f"trainer/models/{NAME}.py" in started["next"]
        assert "ARCHITECTURES in trainer/models/__init__.py" in started["next"]
        folder = Path(started["folder"])
        assert started["example"].count("2.0)") == 1
        (folder / f"trainer/models/{NAME}.py").write_text(started["example"].replace("2.0)", "0.0)"))
        listed = folder / "trainer/models/__init__.py"
        line = f'ARCHITECTURES = {{\n    "{NAME}": "trainer.models.{NAME}",\n'
        listed.write_text(listed.read_text().replace("ARCHITECTURES = {\n", line))
        rules = await self.call("rules")
        assert "submit" in rules["AGENTS.md"]
        assert "enforced by" in rules["docs/reference/rules.md"]
        (track,) = [track["slug"] for track in await self.call("board") if track["approval"] == "anyone"]
        found = await self.call("smoke", name=NAME, options=["--preset", "tiny"])
        assert found["passed"], found
        assert [line.partition(":")[0] for line in self.progress] == [
            *("1 of 4  starts", "2 of 4  fits", "3 of 4  learns", "4 of 4  causal"),
        ]
        graph = await self.call("trace", name=NAME)
        assert graph["canonical_hash"]
        assert await self.call("search", text="nothing like this") == []
        texts = {"title": "Half a smear", "hypothesis": "Heads that begin with both keys choose faster."}
        entered = await self.call("submit", name=NAME, track=track, **texts)
        assert entered["entry"] in [entry["id"] for entry in await self.call("search", text="half smear")]
        own = await self.call("status")
        assert own["hours_a_day"] >= own["hours_left"] > 0
        while True:
            status: dict[str, Any] = await self.call("status", entry=entered["entry"])
            if status["obstacle"] or any(run["finished_at"] for run in status["runs"]):
                return status
            await anyio.sleep(5)


async def run_agent(site: LiveSite, folder: Path, token: str) -> dict[str, Any]:
    command = ["-m", "trainer.cli", "mcp", "--server", site.url, "--repository", str(site.repository)]
    environment = {**site.environment, **AUTHOR, "DAILYTRAIN_API_TOKEN": token, "PYTHONPATH": str(REPOSITORY)}
    server = StdioServerParameters(command=sys.executable, args=command, cwd=folder, env=environment)
    with (site.folder / "mcp.log").open("w") as log:
        async with stdio_client(server, log) as streams, ClientSession(*streams) as session:
            await session.initialize()
            return await Agent(session).enter_idea()


@pytest.mark.timeout(3600)
def test_agent_with_tools_alone_gets_from_an_empty_folder_to_a_score(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    with live_site(tmp_path, "40steps") as site:
        site.repository.rmdir()
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, site.repository], check=True)
        subprocess.run(["git", "checkout", "--quiet", "-B", "main"], cwd=site.repository, check=True)
        token = site.call("runs.open_track", name="ada")
        site.start_web()
        site.start_worker()
        site.start_node(site.manage("join_token", "--trusted").split()[-1])
        status = anyio.run(run_agent, site, tmp_path / "agent", token)
        assert status["state"] == "approved", f"{status}\n{site.read_log_tails()}"
        (run,) = status["runs"]
        assert run["state"] == "finished", f"{run}\n{site.read_log_tails()}"
        assert 0.5 < run["bits_per_byte"] < 8
        assert f"{run['bits_per_byte']:.4f}" in status["verdict"]
