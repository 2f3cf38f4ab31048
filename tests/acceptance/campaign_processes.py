"""A campaign over real text on a live site; its volunteers are processes of `dailytrain rephrase join`.

Their model servers speak OpenAI's protocol and run in this process (`model_server`).
"""

from __future__ import annotations

import json
import lzma
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tests.support import hub_server
from tests.support.live_site import LiveSite
from tests.support.model_server import NAME, EchoModel, GibberishModel, SynonymModel, serve_model
from tests.support.paths import DATA

TEXT = DATA / "text"
C4, GUTENBERG = TEXT / "c4_sample" / "c4_sample.jsonl", TEXT / "gutenberg" / "validation.jsonl.xz"
SLICE = 4000
"""Characters of a book in a document."""
TARGET = "words"
UNWRITABLE = " ".join(
    f"{people} {verb} wooden {objects} yearly."
    for people in ("Farmers", "Children", "Teachers")
    for verb in ("paint", "mend", "polish")
    for objects in ("fences", "ladders", "wagons")
)
"""English text without words that `SynonymModel` can replace: its output is a copy."""
BAD = {"garbage": GibberishModel(), "echo": EchoModel()}
"""Models of volunteers whose texts pass no check."""
LEASE_SECONDS = 3.0


def make_sources(folder: Path, books: int, slices: int) -> list[str]:
    """Write the real documents to the folder of the campaign and return their texts in its order."""
    folder.mkdir(parents=True)
    documents = {"c4.jsonl": [json.loads(line)["text"] for line in C4.read_text().splitlines()]}
    with lzma.open(GUTENBERG, "rt") as file:
        texts = [json.loads(line)["text"] for line in islice(file, books)]
    documents["gutenberg.jsonl"] = [
        text[SLICE * number : SLICE * (number + 1)].strip() for text in texts for number in range(1, slices + 1)
    ]
    documents["unwritable.jsonl"] = [UNWRITABLE]
    for name, file_texts in documents.items():
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in file_texts))
    return [text for name in sorted(documents) for text in documents[name]]


@dataclass
class Volunteer:
    """A volunteer process, which a test starts, kills and freezes."""

    site: LiveSite
    name: str
    endpoint: str
    process: subprocess.Popen[bytes] | None = None
    frozen_until: float = 0.0

    def start(self) -> None:
        command = (sys.executable, "-m", "trainer.cli", "rephrase", "join", "--server", self.site.url)
        options = ("--home", str(self.site.folder / self.name), "--name", self.name, "--endpoint", self.endpoint)
        with (self.site.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options, "--parallel", "8"], env=self.site.environment, stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def restart(self, *, is_thawed: bool = False) -> None:
        """Resume the process if its freeze has ended, and start it if it has ended."""
        if self.frozen_until and (is_thawed or time.monotonic() > self.frozen_until):
            self.signal(signal.SIGCONT)
            self.frozen_until = 0.0
        if self.process is None or self.process.poll() is not None:
            self.start()


@dataclass
class Pool:
    volunteers: list[Volunteer]
    draw: random.Random
    fault_counts: Counter[str] = field(default_factory=Counter)

    def inject_faults(self, seconds: float, pause: float) -> None:
        """Inject a fault every `pause` seconds on average, and restart volunteers that have ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.draw.uniform(0.2, 1.8) * pause)
            self.inject_fault(self.draw.choice(("kill", "freeze", "stop")), self.draw.choice(self.volunteers))
            for volunteer in self.volunteers:
                volunteer.restart()

    def inject_fault(self, kind: str, volunteer: Volunteer) -> None:
        self.fault_counts[kind] += 1
        volunteer.signal({"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "stop": signal.SIGTERM}[kind])
        if kind == "freeze":
            volunteer.frozen_until = time.monotonic() + self.draw.uniform(0.5, 3) * LEASE_SECONDS

    def stop(self) -> None:
        for volunteer in self.volunteers:
            if volunteer.process is not None:
                volunteer.process.kill()
                volunteer.process.wait()


@contextmanager
def run_volunteers(site: LiveSite, honest: int, seed: int, seconds: float) -> Iterator[Pool]:
    """Yield the pool of honest volunteers. `seconds` is the time for a batch of prompts.

    The volunteers of `BAD` start first and alone until they are banned, so that packets are left for them.
    """
    models = {f"honest-{number}": SynonymModel(seconds=seconds) for number in range(honest)}
    with ExitStack() as stack:
        bad, good = (
            Pool(
                [
                    Volunteer(site, name, stack.enter_context(serve_model(model, batch_size=4)).url)
                    for name, model in named.items()
                ],
                random.Random(seed),
            )
            for named in (BAD, models)
        )
        try:
            for pool in (bad, good):
                for volunteer in pool.volunteers:
                    volunteer.start()
                if pool is bad:
                    site.wait(lambda: list_banned_volunteers(site) == set(BAD), "the ban of those that write nonsense")
            yield good
        finally:
            bad.stop()
            good.stop()


def start_campaign(site: LiveSite, hub: hub_server.Hub, styles: Sequence[str]) -> None:
    """Start the site with a running campaign."""
    site.environment |= {
        "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
        "REPHRASE_FILES": str(site.folder / "files"),
        "HUB_ENDPOINT": hub.url,
        "HUB_ORGANIZATION": hub_server.ORGANIZATION,
        "HF_TOKEN": hub_server.TOKEN,
    }
    site.call("campaigns.start_campaign", styles=list(styles), model=NAME, target=TARGET)
    site.start_redis()
    site.start_web()
    site.start_worker()


def read_published_files(hub: hub_server.Hub) -> dict[str, bytes]:
    """Return the files of the dataset, or none before it is complete."""
    repository = hub.repositories.get(f"datasets/{hub_server.ORGANIZATION}/{TARGET}")
    files = repository.head.files if repository else {}
    manifest = json.loads(files.get("manifest.json", b"{}"))
    return files if manifest.get("state") == "done" else {}


def list_banned_volunteers(site: LiveSite) -> set[str]:
    return {name for name, (_, state, _) in read_campaign_state(site)["volunteers"].items() if state == "banned"}


def read_campaign_state(site: LiveSite) -> dict[str, Any]:
    state: dict[str, Any] = site.call("campaigns.read_campaign")
    return state
