"""Campaigns of real text, and volunteers who take packets and hand them in: honest ones and others.

An honest volunteer's paraphrases are made by rule: words are replaced, sentences turned round. The checks take them, as
they take a model's.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.campaigns import producer, sessions, transitions
from scheduler.campaigns.models import Campaign
from scheduler.models import Node
from tests.support.pool import HARDWARE, Agent, Work, make_node
from trainer import protocol

NOUNS = (
    "river",
    "garden",
    "letter",
    "winter",
    "captain",
    "teacher",
    "window",
    "forest",
    "bridge",
    "kitchen",
    "village",
)
VERBS = ("carried", "followed", "painted", "watched", "crossed", "repaired", "remembered", "measured", "described")
ENDS = ("in the early morning", "before the storm came", "after a long journey", "near the old mill")
OTHER_WORDS = {"the": "this", "in": "during", "after": "following", "near": "close to", "without": "and never"}


def sentence(seed: int) -> str:
    """Return an English sentence that no other seed has."""
    drawn = hashlib.sha256(str(seed).encode()).digest()
    one, two, three = (NOUNS[drawn[place] % len(NOUNS)] for place in range(3))
    verb, end = VERBS[drawn[3] % len(VERBS)], ENDS[drawn[4] % len(ENDS)]
    return f"The {one} of number {seed} {verb} the {two} and the {three} {end}."


def document(number: int, sentences: int = 12) -> str:
    """Return a document of one paragraph; any two differ in every sentence."""
    return " ".join(sentence(1000 * number + index) for index in range(sentences))


def paraphrase(text: str, style: str, salt: str = "") -> str:
    """Return what an honest volunteer writes: other words, the same things. `salt` tells volunteers apart."""
    sentences = re.findall(r"[^.]+\.", text)
    turned = [reworded(one, style + salt) for one in sentences]
    if style == "qa":
        half = max(len(turned) // 2, 1)
        parts = " ".join(turned[:half]), " ".join(turned[half:]) or turned[0]
        return "\n".join(
            f"Question: What is told {place}?\nAnswer: {part}"
            for place, part in zip(("first", "then"), parts, strict=True)
        )
    return f"It is said {style}{salt} that what follows is so. " + " ".join(turned)


def reworded(one: str, salt: str) -> str:
    words = one.strip().rstrip(".").split()
    kept = [OTHER_WORDS.get(word.lower(), word) for word in words]
    turn = 3 + len(salt) % 3
    return f"{' '.join(kept[turn:])}, {' '.join(kept[:turn])}.".capitalize()


def write_source(folder: Path, documents: list[str], name: str = "texts.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (folder / name).write_text("".join(lines))


def make_campaign(settings: Any, folder: Path, documents: list[str] | None = None, **fields: Any) -> Campaign:
    """Return a running campaign over these documents."""
    settings.REPHRASE_FILES = folder / "files"
    settings.HOME = folder
    settings.JOB_KINDS = {**settings.JOB_KINDS, "rephrase": "scheduler.campaigns.sessions.RephraseSessionHandler"}
    write_source(folder / "files", documents if documents is not None else [document(n) for n in range(4)])
    defaults: dict[str, Any] = {
        "slug": "small",
        "name": "Small",
        "dataset": "*.jsonl",
        "styles": ["easy", "medium"],
        "model": "tiny",
        "chunk_tokens": 60,
        "chunks_per_packet": 2,
        "low_mark": 1000,
        "high_mark": 1000,
        "replication_rate": 0.0,
        "known_answer_rate": 0.0,
        "quarantine_minutes": 0.0,
        "rows_per_shard": 10,
        # The language of sentences made by rule is nobody's.
        "language": "",
    }
    campaign = Campaign.objects.create(**{**defaults, **fields})
    transitions.start_campaign(campaign, "ada")
    return campaign


def produced(campaign: Campaign) -> Campaign:
    """Let the campaign be read to its end, or to its high mark."""
    producer.produce_campaign(campaign.pk)
    campaign.refresh_from_db()
    return campaign


@dataclass
class Volunteer:
    """A machine that rephrases."""

    work: Work
    node: Node
    salt: str = ""
    last: protocol.TakePacketsReply = field(default_factory=protocol.TakePacketsReply)

    @property
    def order(self) -> protocol.RephraseOrder:
        order = self.work.spec.order
        assert isinstance(order, protocol.RephraseOrder)
        return order

    def take(self, count: int = 16, held: tuple[int, ...] = ()) -> tuple[protocol.Packet, ...]:
        answer = self.work.call("/packets/take", protocol.TakePackets(count=count, held=held))
        assert answer.status_code == 200, answer.content
        self.last = protocol.TakePacketsReply.model_validate_json(answer.content)
        return self.last.packets

    def result(self, packet: protocol.Packet, write: Any = None, **changes: Any) -> protocol.RephrasedPacket:
        write = write or (lambda text, style: paraphrase(text, style, self.salt))
        outputs = tuple(
            output(chunk, style, write(chunk.text, style)) for chunk in packet.chunks for style in chunk.styles
        )
        order = self.order
        told = {
            "packet": packet.packet,
            "prompt_version": order.prompt_version,
            "model": order.model,
            "revision": order.revision,
            "sampling": order.sampling,
            "back_end": "rules",
            "outputs": outputs,
        }
        return protocol.RephrasedPacket(**{**told, **changes})

    def hand_in(self, *results: protocol.RephrasedPacket) -> list[protocol.PacketVerdict]:
        answer = self.work.call("/packets/submit", protocol.SubmitPackets(results=results))
        assert answer.status_code == 200, answer.content
        return list(protocol.SubmitPacketsReply.model_validate_json(answer.content).verdicts)

    def write(self, count: int = 16, write: Any = None) -> list[protocol.PacketVerdict]:
        """Take packets and hand them in."""
        packets = self.take(count)
        return self.hand_in(*(self.result(packet, write) for packet in packets)) if packets else []


def output(chunk: protocol.Chunk, style: Any, text: str) -> protocol.RephraseOutput:
    return protocol.RephraseOutput(
        chunk=chunk.index,
        style=style,
        source_sha256=chunk.sha256,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        tokens=len(text.split()),
    )


def sit_down(name: str, salt: str | None = None, **fields: Any) -> Volunteer:
    """Return a volunteer with a lease on a sitting."""
    sessions.queue_sessions()
    node, token = make_node(name, **{"packets": Node.Packets.ONLY, **fields})
    hardware = HARDWARE.model_copy(
        update={"kinds": ("rephrase",), "rephraser": protocol.Rephraser(back_end="rules", models=("tiny",))}
    )
    return Volunteer(Agent(token, hardware=hardware).work(), node, name if salt is None else salt)


def garbage(text: str, style: str) -> str:
    return "Buy cheap watches now at our wonderful store, only today and only for you, dear friend."


def echo(text: str, style: str) -> str:
    return text
