"""A sponsor pastes the page's command on a clean system; its node finishes a job in the sandbox.

Each system takes minutes and gigabytes, so only those in CLEAN_SYSTEMS run, such as "bookworm trixie". Debian comes
from this machine's own archive; "noble=http://..." names that of another distribution.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import httpx
import pytest

from tests.acceptance import clean_system
from tests.support.live_site import PASSWORD, LiveSite, live_site, make_repository
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]
INSTALL_SECONDS = 3600.0
"""Several gigabytes, where this machine has no CPU build of torch for the system's Python."""
FORM = {"gpu_count": "0", "lanes": "together", "available": "always", "timezone": "UTC", "serves": "everyone"}
CPU_INDEX = "--pip-args=--extra-index-url=https://download.pytorch.org/whl/cpu"


def lend_machine(site_url: str) -> tuple[str, list[str]]:
    """Lend a machine as a sponsor does: sign in and fill in the form; return the pipx command and apt's packages."""
    with httpx.Client(base_url=site_url, follow_redirects=True, timeout=WAIT_SECONDS) as browser:
        browser.get("/accounts/login/")
        secret = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        browser.post("/accounts/login/", data={"login": "maintainer", "password": PASSWORD, **secret})
        form = {**FORM, "name": "loco", "shown": "name", "sponsor_name": "Maintainer"}
        browser.get("/sponsors/lend/")
        secret = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        page = unescape(browser.post("/sponsors/lend/", data={**form, **secret}).raise_for_status().text)
    line = re.search(r'id="pipx-line"[^>]*>([^<]+)<', page)
    packages = re.search(r"<code>apt install ([^<]+)</code>", page)
    assert line, page
    assert packages, page
    return line[1], packages[1].split()


def read_train_job(site: LiveSite) -> str | None:
    page = site.get_json("runs")
    runs = page["items"] if page else []
    failed = [run["reason"] for run in runs if run["state"] == "failed"]
    assert not failed, f"{failed}\n{site.read_log_tails()}"
    return next((run["state"] for run in runs if run["state"] in ("scoring", "finished")), None)


@pytest.mark.timeout(2 * INSTALL_SECONDS)
@pytest.mark.parametrize("suite", ["bookworm", "trixie", "noble"])
def test_pasted_line_on_a_clean_system_finishes_a_job(suite: str, tmp_path: Path) -> None:
    wanted = dict(re.findall(r"(\w+)=?(\S*)", os.environ.get("CLEAN_SYSTEMS", "")))
    if suite not in wanted:
        pytest.skip(f"CLEAN_SYSTEMS does not name {suite}")
    if problem := clean_system.find_problem():
        pytest.skip(problem)
    mirror = wanted[suite] or clean_system.find_debian_mirror()
    log = tmp_path / "system.log"
    environment, shown = clean_system.read_pip_configuration()
    system = clean_system.create_clean_system(tmp_path / "root", suite, mirror, log, environment, shown)
    folder = tmp_path / "site"
    folder.mkdir()
    with live_site(folder, "60steps") as site:
        site.environment["WHEELS"] = str(folder / "wheels")
        site.manage("build_wheel")
        make_repository(site.repository)
        site.start_web()
        site.start_worker()
        site.call("runs.start_night")
        line, packages = lend_machine(site.url)
        system.run(["apt-get", "update", "-q"], log, "root")
        system.run(["apt-get", "install", "-y", "-q", *packages], log, "root")
        # The index of the page may be out of reach: pip takes what it is configured with here.
        assert CPU_INDEX in line
        with (folder / "pasted-line.log").open("wb") as output:
            command = ["bash", "-c", line.replace(CPU_INDEX, "")]
            output.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {suite}\n$ {line}\n".encode())
            output.flush()
            node = system.start(command, output)
            try:
                site.wait(lambda: has_joined(site, node.poll()), "the node to join", INSTALL_SECONDS)
                site.wait(lambda: read_train_job(site), "the run to be trained", WAIT_SECONDS)
            finally:
                clean_system.stop_system(node)
        assert [lease["node"] for lease in site.call("runs.read_leases")] == ["loco"]


def has_joined(site: LiveSite, code: int | None) -> bool:
    assert code is None, f"pipx ended with {code}\n{site.read_log_tails()}"
    nodes = site.get_json("nodes") or {"items": []}
    return any(node["name"] == "loco" and node["state"] == "online" for node in nodes["items"])
