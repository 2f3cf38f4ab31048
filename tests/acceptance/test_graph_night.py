"""A night with graphs: one node traces entries in its sandbox, another one without a sandbox trains and scores them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import ForkServer
from tests.support.live_site import LiveSite, live_site, make_repository
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BUDGET = "60steps"
LABEL = "lent"  # training needs this label, so the node `intake` only traces


def read_runs(site: LiveSite) -> dict[str, dict[str, Any]]:
    """Return the runs by the kind of their entry."""
    page = site.get_json("runs")
    return {run["kind"]: run for run in page["items"]} if page else {}


def read_runs_in(site: LiveSite, *states: str) -> dict[str, dict[str, Any]] | None:
    runs = read_runs(site)
    failed = [run["reason"] for run in runs.values() if run["state"] == "failed"]
    assert not failed, f"{failed}\n{site.read_log_tails()}"
    return runs if len(runs) == 2 and all(run["state"] in states for run in runs.values()) else None


@pytest.mark.timeout(3600)
def test_node_without_sandbox_trains_and_scores_entries_traced_elsewhere(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    with live_site(tmp_path, BUDGET, is_traced=True, needs_labels=(LABEL,)) as site:
        sha = make_repository(site.repository)
        site.start_web()
        site.start_worker()
        site.call("runs.start_night")
        site.manage("submit_entry", str(site.repository), sha, "--title", "An idea", "--arch", "idea")
        (entry,) = [entry for entry in site.get_json("entries")["items"] if entry["kind"] == "architecture"]
        site.approve(entry["id"], sha)

        intake, lent = (site.manage("join_token", "--trusted").split()[-1] for _ in range(2))
        site.start_node(intake, part="intake", name="intake")
        site.wait(lambda: read_runs_in(site, "queued"), "both entries to be traced")
        site.processes["intake"].send_signal(signal.SIGTERM)
        site.processes.pop("intake").wait(WAIT_SECONDS)
        options = ("--sandbox", "none", "--label", LABEL)
        site.start_node(lent, *options, part="lent", name="lent", **fork_server.environment)
        runs = site.wait(lambda: read_runs_in(site, "finished"), "both runs to be scored")

        assert all(0.5 < run["bits_per_byte"] < 8 and run["graph"] for run in runs.values())
        # The idea is main's model with a pause in its Python: the same graph.
        assert runs["architecture"]["graph"] == runs["main"]["graph"]
        assert {row["id"] for row in site.get_json("tracks/tiny/board")} == {run["id"] for run in runs.values()}
        page = site.get(f"/entries/{entry['id']}/")
        assert page is not None
        assert runs["architecture"]["graph"] in page.text

        leases = site.call("runs.read_leases")
        assert {lease["kind"] for lease in leases if lease["node"] == "intake"} == {"smoke"}
        trained = [lease for lease in leases if lease["node"] == "lent"]
        assert sorted(lease["kind"] for lease in trained) == ["score", "score", "train", "train"]
        assert not any(lease["has_entry"] for lease in trained), "no file of an entry leaves the site"
        assert {lease["graph"] for lease in trained} == {run["graph"] for run in runs.values()}
