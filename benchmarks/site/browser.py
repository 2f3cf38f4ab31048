"""Measures pages in Chromium: a first view with an empty cache, and the delay of a live page.

`python -m benchmarks.site.browser` starts a site and fills it with the demo. The figures come from Chromium's DevTools
protocol.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from benchmarks.processes import ROOT, print_status, run_site

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
LIVE_STEPS = 12
"""Steps that the run reports while the page is open."""
WATCH = """
window.figures = { shift: 0, largest: 0, blocked: 0 };
const watch = (type, each) =>
  new PerformanceObserver((list) => list.getEntries().forEach(each)).observe({ type, buffered: true });
watch("layout-shift", (entry) => { if (!entry.hadRecentInput) figures.shift += entry.value; });
watch("largest-contentful-paint", (entry) => { figures.largest = entry.startTime; });
watch("longtask", (entry) => { figures.blocked += entry.duration - 50; });
"""


def measure_first_view(browser: Browser, address: str) -> dict[str, float]:
    """Open a page with an empty cache; return bytes, requests, layout shift, and paint and blocking times in ms."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    wire = context.new_cdp_session(page)
    wire.send("Network.enable")
    sizes: list[float] = []
    wire.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(address, wait_until="networkidle")
    page.wait_for_timeout(300)
    figures: dict[str, float] = page.evaluate(
        "({...figures, first: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0})"
    )
    context.close()
    return {**figures, "bytes": sum(sizes), "requests": len(sizes)}


def measure_delays(browser: Browser, address: str, node: subprocess.Popen[str]) -> list[float]:
    """Return for each step the seconds until the open page shows it."""
    assert node.stdin
    assert node.stdout
    page, found, draw = browser.new_page(), [], random.Random(1)
    page.goto(address)
    page.wait_for_timeout(3000)
    for step in range(1001, 1001 + LIVE_STEPS):
        page.wait_for_timeout(draw.uniform(0, 2000))
        node.stdin.write(f"{step}\n")
        node.stdin.flush()
        stored = float(node.stdout.readline())
        while page.evaluate("Number(document.querySelector('#curve').dataset.points ?? 0)") < step:
            assert time.time() < stored + 20, f"step {step} is not shown"
            page.wait_for_timeout(20)
        found.append(time.time() - stored)
    page.close()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        environment = {
            **os.environ, "DAILYTRAIN_HOME": home, "LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1",
            "DJANGO_SETTINGS_MODULE": "dailytrain.settings",
        }  # fmt: skip
        for command in (["migrate", "--verbosity", "0"], ["seed_demo"]):
            subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=environment, check=True, stdout=2)
        with (
            run_site(environment, 1, Path(home) / "site.log") as (port, _),
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.site.report"],
                cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            ) as node,
        ):  # fmt: skip
            assert node.stdin
            assert node.stdout
            setup = json.loads(node.stdout.readline())
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for name, path in setup["pages"].items():
                measure_first_view(browser, f"http://127.0.0.1:{port}{path}")
                print_status(f"{name}: {json.dumps(measure_first_view(browser, f'http://127.0.0.1:{port}{path}'))}")
            delays = measure_delays(browser, f"http://127.0.0.1:{port}/runs/{setup['run']}/", node)
            print_status(
                f"delay of the live page: median {median(delays):.2f} s, at most {max(delays):.2f} s of {len(delays)}"
            )
            node.stdin.close()
            browser.close()


if __name__ == "__main__":
    main()
