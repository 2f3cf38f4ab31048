"""A campaign over real text, from its documents to a dataset on the Hub, with volunteers that crash and freeze.

Every chunk of every document is published once in every style, or listed as set aside with a reason. The suite uses
thirty pages of C4 and a few pages of Gutenberg's books; `make chaos-rephrase` runs longer. The volunteers are processes
of `dailytrain rephrase join`; their model servers run in this process.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support import hub_server
from tests.support.live_site import LiveSite, database
from tests.support.model_server import NAME, SynonymModel, serve_model
from tests.support.paths import DATA
from tests.support.waits import WAIT_SECONDS
from trainer.rephrase.checks import REASONS

TEXT = DATA / "text"
C4, GUTENBERG = TEXT / "c4_sample" / "c4_sample.jsonl", TEXT / "gutenberg" / "validation.jsonl.xz"
SECONDS = float(os.environ.get("REPHRASE_SECONDS", "8"))
HONEST = int(os.environ.get("REPHRASE_HONEST", "2"))
BOOKS = int(os.environ.get("REPHRASE_BOOKS", "2"))
SLICES = int(os.environ.get("REPHRASE_SLICES", "5"))
STYLES = tuple(os.environ.get("REPHRASE_STYLES", "medium qa").split())
SEED = int(os.environ.get("CHAOS_SEED", "1"))
SLICE = 4000
"""Characters of a book in a document."""
LEASE_SECONDS = 3.0
TARGET = "words"
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "stop": signal.SIGTERM}

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(
        not (C4.exists() and GUTENBERG.exists()),
        reason=f"the real documents are not at {C4.parents[1]} (DAILYTRAIN_DATA)",
    ),
]


def make_sources(folder: Path) -> list[str]:
    """Write the real documents to the folder of the campaign and return their texts in its order."""
    folder.mkdir(parents=True)
    pages = [json.loads(line)["text"] for line in C4.read_text().splitlines()]
    with lzma.open(GUTENBERG, "rt") as file:
        books = [json.loads(line)["text"] for line in islice(file, BOOKS)]
    slices = [text[SLICE * number : SLICE * (number + 1)].strip() for text in books for number in range(1, SLICES + 1)]
    for name, texts in (("c4.jsonl", pages), ("gutenberg.jsonl", slices)):
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return pages + slices


@dataclass
class Volunteer:
    site: LiveSite
    name: str
    endpoint: str
    process: subprocess.Popen[bytes] | None = None
    frozen_until: float = 0.0

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def restart(self, *, is_thawed: bool = False) -> None:
        """Resume the process if its freeze has ended, and start it if it does not run."""
        if self.frozen_until and (is_thawed or time.monotonic() > self.frozen_until):
            self.signal(signal.SIGCONT)
            self.frozen_until = 0.0
        if self.process is None or self.process.poll() is not None:
            command = (sys.executable, "-m", "trainer.cli", "rephrase", "join", "--server", self.site.url)
            options = ("--home", str(self.site.folder / self.name), "--name", self.name, "--endpoint", self.endpoint)
            with (self.site.folder / f"{self.name}.log").open("ab") as log:
                words = [*command, *options, "--parallel", "8"]
                self.process = subprocess.Popen(words, env=self.site.environment, stdout=log, stderr=log)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def inject_faults(volunteers: list[Volunteer], seconds: float) -> Counter[str]:
    """Kill, freeze and stop volunteers, and restart those that have ended; return how often of each kind."""
    draw, faults, until = random.Random(SEED), Counter[str](), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(draw.uniform(0.6, 5.4) / HONEST)
        kind, volunteer = draw.choice([*SIGNALS]), draw.choice(volunteers)
        faults[kind] += 1
        volunteer.signal(SIGNALS[kind])
        if kind == "freeze":
            volunteer.frozen_until = time.monotonic() + draw.uniform(0.5, 3) * LEASE_SECONDS
        for each in volunteers:
            each.restart()
    return faults


def start_campaign(site: LiveSite, hub: hub_server.Hub) -> None:
    """Start the site with a running campaign."""
    site.environment |= {
        "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "REPHRASE_FILES": str(site.folder / "files"),
        "HUB_ENDPOINT": hub.url,
        "HUB_ORGANIZATION": hub_server.ORGANIZATION,
        "HF_TOKEN": hub_server.TOKEN,
    }
    site.call("campaigns.start_campaign", styles=list(STYLES), model=NAME, target=TARGET)
    site.start_redis()
    site.start_web()
    site.start_worker()


def read_published_files(hub: hub_server.Hub) -> dict[str, bytes]:
    """Return the files of the dataset, or none before it is complete."""
    repository = hub.repositories.get(f"datasets/{hub_server.ORGANIZATION}/{TARGET}")
    files = repository.head.files if repository else {}
    return files if json.loads(files.get("manifest.json", b"{}")).get("state") == "done" else {}


@pytest.mark.timeout(4 * SECONDS + 3600)
def test_campaign_with_faulty_volunteers_publishes_each_chunk_once(tmp_path: Path) -> None:
    with database(tmp_path) as address, hub_server.run_hub_server() as hub, ExitStack() as servers:
        site, documents = LiveSite(tmp_path, address), make_sources(tmp_path / "files")
        urls = [servers.enter_context(serve_model(SynonymModel(seconds=0.5), batch_size=4)).url for _ in range(HONEST)]
        volunteers = [Volunteer(site, f"volunteer-{number}", url) for number, url in enumerate(urls)]
        try:
            start_campaign(site, hub)
            for volunteer in volunteers:
                volunteer.restart()
            site.wait(lambda: site.call("campaigns.read_campaign")["accepted"], "the first text")
            volunteers[-1].signal(signal.SIGKILL)  # while it holds packets
            faults = inject_faults(volunteers, SECONDS)
            for volunteer in volunteers:
                volunteer.restart(is_thawed=True)
            site.wait(lambda: read_published_files(hub), "the dataset to be complete", WAIT_SECONDS + 3 * SECONDS)
        finally:
            for volunteer in volunteers:
                volunteer.end()
            site.stop_all()
        found, files = site.call("campaigns.read_campaign"), read_published_files(hub)
        site.stop_programs()
    check_sources(found, documents)
    rows, aside = check_complete(found, files)
    assert found["assignments"]["released"] > 0, "no volunteer was killed while it held packets"
    assert found["banned"] == []
    print(f"{len(documents)} documents, {rows} rows, {aside} set aside; {dict(faults)}; {found['assignments']}")  # noqa: T201


def check_sources(found: dict[str, Any], documents: list[str]) -> None:
    """Check that the packets contain each document once, word for word, and that omitted documents are counted."""
    assert found["source_error"] == ""
    texts: dict[int, list[str]] = {}
    for row, first, _, chunks in found["packets"]:
        assert first == len(texts.setdefault(row, []))
        texts[row] += chunks
    for row, chunks in texts.items():
        assert re.sub(r"\s+", "", "".join(chunks)) == re.sub(r"\s+", "", documents[row])
    assert len(texts) + sum(found["dropped"].values()) == len(documents)


def check_complete(found: dict[str, Any], files: dict[str, bytes]) -> tuple[int, int]:
    """Check that each chunk is published once per style or set aside with a reason; return how many are which."""
    from pyarrow import parquet

    tables = [parquet.read_table(io.BytesIO(content)) for name, content in files.items() if name.startswith("data/")]
    rows = [row for table in tables for row in table.to_pylist()]
    sources = {
        (row, first + index): text for row, first, _, chunks in found["packets"] for index, text in enumerate(chunks)
    }
    aside = [json.loads(line) for line in files["set_aside.jsonl"].splitlines()]
    assert all(one["reasons"] and set(one["reasons"]) <= {*REASONS, "lost"} for one in aside)
    wanted = Counter((*chunk, style) for chunk in sources for style in STYLES)
    assert Counter((one["row"], one["chunk"], one["style"]) for one in (*rows, *aside)) == wanted
    assert all(one["source"] == sources[one["row"], one["chunk"]] for one in rows)
    assert len({row["sha256"] for row in rows}) == len(rows)
    assert len(aside) < len(rows) / 4, "too many chunks are set aside"
    return len(rows), len(aside)
