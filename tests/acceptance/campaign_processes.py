"""A campaign over real text on a live site; its volunteers are processes of `dailytrain rephrase join`.

Their model servers speak OpenAI's protocol and run in this process (`model_server`).
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
import time
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
from tests.support.pool_with_faults import Agent, AgentProxy, Pool

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
NONSENSE = ("garbage", "echo")
"""Volunteers whose texts pass no check."""


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
class RecordingModel(SynonymModel):
    """A synonym model that records its texts."""

    recorded_texts: dict[tuple[str, str], str] = field(default_factory=dict)
    """Text by style and source."""

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        text = super().rephrase(style, source, rng)
        self.recorded_texts[style, source] = text
        return text


@dataclass
class ReplayingModel(SynonymModel):
    """Returns recorded texts, once there are any: that of the same chunk if possible, otherwise of another chunk."""

    recorded_texts: dict[tuple[str, str], str] = field(default_factory=dict)

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        while not self.recorded_texts:
            time.sleep(0.05)
        others = [text for (recorded_style, _), text in tuple(self.recorded_texts.items()) if recorded_style == style]
        return self.recorded_texts.get((style, source)) or (rng.choice(others) if others else source)


@dataclass
class Volunteer(Agent):
    """A volunteer process that connects through its own port of the proxy."""

    name: str = ""
    endpoint: str = ""

    def start(self) -> None:
        command = (sys.executable, "-m", "trainer.cli", "rephrase", "join", "--server", f"http://127.0.0.1:{self.port}")
        options = ("--home", str(self.home), "--name", self.name, "--endpoint", self.endpoint, "--parallel", "8")
        with self.home.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen([*command, *options], env=self.environment, stdout=log, stderr=log)


@contextmanager
def run_volunteers(site: LiveSite, honest: int, seed: int, seconds: float) -> Iterator[tuple[Pool, RecordingModel]]:
    """Yield the pool of honest volunteers and the model of the last one. `seconds` is the time for a batch of prompts.

    The volunteers of `NONSENSE` start first and alone until they are banned, so that packets are left for them.
    """
    with ExitStack() as stack:
        recording_model = RecordingModel(seconds=seconds)
        models = {f"honest-{number}": SynonymModel(seconds=seconds) for number in range(honest - 1)}
        models |= {f"honest-{honest - 1}": recording_model, "garbage": GibberishModel(), "echo": EchoModel()}
        models |= {"replay": ReplayingModel(recorded_texts=recording_model.recorded_texts)}
        proxy = AgentProxy(site.port, len(models))
        all_volunteers = [
            Volunteer(
                number=number,
                home=site.folder / name,
                port=proxy.ports[number],
                token="",
                environment=site.environment,
                name=name,
                endpoint=stack.enter_context(serve_model(model, batch_size=4)).url,
            )
            for number, (name, model) in enumerate(models.items())
        ]
        full_pool = Pool(site, list(all_volunteers), proxy, random.Random(seed))
        try:
            nonsense_volunteers = [volunteer for volunteer in all_volunteers if volunteer.name in NONSENSE]
            for volunteer in nonsense_volunteers:
                volunteer.start()
            site.wait(
                lambda: list_banned_volunteers(site) == set(NONSENSE), "the ban of volunteers that write nonsense"
            )
            for volunteer in all_volunteers:
                if volunteer not in nonsense_volunteers:
                    volunteer.start()
            yield Pool(site, list(all_volunteers[:honest]), proxy, random.Random(seed)), recording_model
        finally:
            full_pool.stop()


def start_campaign(site: LiveSite, hub: hub_server.Hub, styles: Sequence[str]) -> None:
    """Start the site with a running campaign."""
    site.environment |= {
        "LEASE_SECONDS": "3",
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
