"""A campaign over real text before a real site; its volunteers are processes of `dailytrain rephrase join`.

What they write with are servers that speak OpenAI's protocol, in this process (`word_model`).
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
from tests.support.pool_chaos import Agent, Pool, Wire

TEXT = DATA / "text"
C4, GUTENBERG = TEXT / "c4_sample" / "c4_sample.jsonl", TEXT / "gutenberg" / "validation.jsonl.xz"
SLICE = 4000
"""Characters of a book in a document."""
TARGET = "words"
UNWRITABLE = " ".join(
    f"{who} {does} wooden {what} yearly."
    for who in ("Farmers", "Children", "Teachers")
    for does in ("paint", "mend", "polish")
    for what in ("fences", "ladders", "wagons")
)
"""English that `SynonymModel` has no other words for: whoever tries it hands in a copy."""
NONSENSE = ("garbage", "echo")
"""Who hands in nothing that any check would pass."""


def make_sources(folder: Path, books: int, slices: int) -> list[str]:
    """Write the real documents where a campaign finds them; return their texts, in its order."""
    folder.mkdir(parents=True)
    documents = {"c4.jsonl": [json.loads(line)["text"] for line in C4.read_text().splitlines()]}
    with lzma.open(GUTENBERG, "rt") as file:
        texts = [json.loads(line)["text"] for line in islice(file, books)]
    documents["gutenberg.jsonl"] = [
        text[SLICE * number : SLICE * (number + 1)].strip() for text in texts for number in range(1, slices + 1)
    ]
    documents["unwritable.jsonl"] = [UNWRITABLE]
    for name, of_it in documents.items():
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in of_it))
    return [text for name in sorted(documents) for text in documents[name]]


@dataclass
class Overheard(SynonymModel):
    """An honest one, to whom somebody listens."""

    said: dict[tuple[str, str], str] = field(default_factory=dict)
    """By style and source."""

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        text = super().rephrase(style, source, rng)
        self.said[style, source] = text
        return text


@dataclass
class Replay(SynonymModel):
    """Says what it has overheard, as soon as there is something: on the same chunk if it can, otherwise on any."""

    heard: dict[tuple[str, str], str] = field(default_factory=dict)

    def rephrase(self, style: str, source: str, rng: random.Random) -> str:
        while not self.heard:
            time.sleep(0.05)
        others = [text for (known, _), text in tuple(self.heard.items()) if known == style]
        return self.heard.get((style, source)) or (rng.choice(others) if others else source)


@dataclass
class Volunteer(Agent):
    """A machine that rephrases, through its own port of the wire."""

    name: str = ""
    endpoint: str = ""

    def start(self) -> None:
        command = (sys.executable, "-m", "trainer.cli", "rephrase", "join", "--server", f"http://127.0.0.1:{self.port}")
        options = ("--home", str(self.home), "--name", self.name, "--endpoint", self.endpoint, "--parallel", "8")
        with self.home.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen([*command, *options], env=self.environment, stdout=log, stderr=log)


@contextmanager
def volunteers(site: LiveSite, honest: int, seed: int, seconds: float) -> Iterator[tuple[Pool, Overheard]]:
    """Yield the honest ones, to be disturbed, and what the last of them writes. `seconds`: for a batch of prompts.

    Those who write nonsense come first and alone, until they are found out: nobody has done all the work before.
    """
    with ExitStack() as stack:
        overheard = Overheard(seconds=seconds)
        engines = {f"honest-{number}": SynonymModel(seconds=seconds) for number in range(honest - 1)}
        engines |= {f"honest-{honest - 1}": overheard, "garbage": GibberishModel(), "echo": EchoModel()}
        engines |= {"replay": Replay(heard=overheard.said)}
        wire = Wire(site.port, len(engines))
        made = [
            Volunteer(
                number=number,
                home=site.folder / name,
                port=wire.ports[number],
                token="",
                environment=site.environment,
                name=name,
                endpoint=stack.enter_context(serve_model(engine, batch_size=4)).url,
            )
            for number, (name, engine) in enumerate(engines.items())
        ]
        everybody = Pool(site, list(made), wire, random.Random(seed))
        try:
            bad = [volunteer for volunteer in made if volunteer.name in NONSENSE]
            for volunteer in bad:
                volunteer.start()
            site.wait(lambda: barred(site) == set(NONSENSE), "those who write nonsense to be barred")
            for volunteer in made:
                if volunteer not in bad:
                    volunteer.start()
            yield Pool(site, list(made[:honest]), wire, random.Random(seed)), overheard
        finally:
            everybody.stop()


def begin(site: LiveSite, hub: hub_server.Hub, styles: Sequence[str]) -> None:
    """Start the site with a campaign that runs."""
    site.environment |= {
        "LEASE_SECONDS": "3",
        "REPHRASE_FILES": str(site.folder / "files"),
        "HUB_ENDPOINT": hub.url,
        "HUB_ORGANISATION": hub_server.ORGANISATION,
        "HF_TOKEN": hub_server.TOKEN,
    }
    site.call("campaigns.start_campaign", styles=list(styles), model=NAME, target=TARGET)
    site.start_redis()
    site.start_web()
    site.start_worker()


def published(hub: hub_server.Hub) -> dict[str, bytes]:
    """Return the files of the dataset once it is complete."""
    repository = hub.repositories.get(f"datasets/{hub_server.ORGANISATION}/{TARGET}")
    files = repository.head.files if repository else {}
    told = json.loads(files.get("manifest.json", b"{}"))
    return files if told.get("state") == "done" else {}


def barred(site: LiveSite) -> set[str]:
    return {name for name, (_, state, _) in books(site)["volunteers"].items() if state == "banned"}


def books(site: LiveSite) -> dict[str, Any]:
    """Return what the site has written down."""
    found: dict[str, Any] = site.call("campaigns.read_campaign")
    return found
