"""Campaigns and volunteers that take and submit packets through the node API.

Honest volunteers paraphrase by rule: they replace words and rotate sentences. The checks accept these texts.
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
from tests.support.pool import HARDWARE, Agent, ClaimedJob, create_node
from trainer import protocol

NOUNS = ("river", "garden", "letter", "winter", "captain", "teacher", "window", "forest", "bridge", "kitchen", "barn")
VERBS = ("carried", "followed", "painted", "watched", "crossed", "repaired", "remembered", "measured", "described")
ENDS = ("in the early morning", "before the storm came", "after a long journey", "near the old mill")
OTHER_WORDS = {"the": "this", "in": "during", "after": "following", "near": "close to", "without": "and never"}


def build_sentence(seed: int) -> str:
    """Return an English sentence that is unique to this seed."""
    drawn = hashlib.sha256(str(seed).encode()).digest()
    one, two, three = (NOUNS[drawn[place] % len(NOUNS)] for place in range(3))
    verb, end = VERBS[drawn[3] % len(VERBS)], ENDS[drawn[4] % len(ENDS)]
    return f"The {one} of number {seed} {verb} the {two} and the {three} {end}."


def build_document(number: int, sentences: int = 12) -> str:
    """Return a document of one paragraph; any two differ in every sentence."""
    return " ".join(build_sentence(1000 * number + index) for index in range(sentences))


def paraphrase_text(text: str, style: str, salt: str = "") -> str:
    """Return an honest paraphrase. `salt`: makes the texts of volunteers differ."""
    sentences = re.findall(r"[^.]+\.", text)
    turned = [reword_sentence(one, style + salt) for one in sentences]
    if style == "qa":
        half = max(len(turned) // 2, 1)
        parts = " ".join(turned[:half]), " ".join(turned[half:]) or turned[0]
        return "\n".join(
            f"Question: What is told {place}?\nAnswer: {part}"
            for place, part in zip(("first", "then"), parts, strict=True)
        )
    return f"It is said {style}{salt} that what follows is so. " + " ".join(turned)


def reword_sentence(one: str, salt: str) -> str:
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
    write_source(folder / "files", documents if documents is not None else [build_document(n) for n in range(4)])
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
        "language": "",  # of sentences made by rule, the classifier is unsure
    }
    campaign = Campaign.objects.create(**{**defaults, **fields})
    transitions.start_campaign(campaign, "ada")
    return campaign


def fill_campaign(campaign: Campaign) -> Campaign:
    """Create packets to the end of the source or to the high mark; return the fresh row."""
    producer.produce_campaign(campaign.pk)
    campaign.refresh_from_db()
    return campaign


@dataclass
class VolunteerAgent:
    """A node with a lease on a rephrase session."""

    claimed_job: ClaimedJob
    node: Node
    salt: str = ""
    last: protocol.TakePacketsReply = field(default_factory=protocol.TakePacketsReply)

    @property
    def order(self) -> protocol.RephraseOrder:
        order = self.claimed_job.spec.order
        assert isinstance(order, protocol.RephraseOrder)
        return order

    def take(self, count: int = 16, held: tuple[int, ...] = ()) -> tuple[protocol.Packet, ...]:
        response = self.claimed_job.call("/packets/take", protocol.TakePackets(count=count, held=held))
        assert response.status_code == 200, response.content
        self.last = protocol.TakePacketsReply.model_validate_json(response.content)
        return self.last.packets

    def result(self, packet: protocol.Packet, write: Any = None, **changes: Any) -> protocol.RephrasedPacket:
        write = write or (lambda text, style: paraphrase_text(text, style, self.salt))
        outputs = tuple(
            build_output(chunk, style, write(chunk.text, style)) for chunk in packet.chunks for style in chunk.styles
        )
        order = self.order
        fields = {
            "packet": packet.packet,
            "prompt_version": order.prompt_version,
            "model": order.model,
            "revision": order.revision,
            "sampling": order.sampling,
            "back_end": "rules",
            "outputs": outputs,
        }
        return protocol.RephrasedPacket(**{**fields, **changes})

    def submit(self, *results: protocol.RephrasedPacket) -> list[protocol.PacketVerdict]:
        response = self.claimed_job.call("/packets/submit", protocol.SubmitPackets(results=results))
        assert response.status_code == 200, response.content
        return list(protocol.SubmitPacketsReply.model_validate_json(response.content).verdicts)

    def rephrase(self, count: int = 16, write: Any = None) -> list[protocol.PacketVerdict]:
        """Take packets and submit their results."""
        packets = self.take(count)
        return self.submit(*(self.result(packet, write) for packet in packets)) if packets else []


def build_output(chunk: protocol.Chunk, style: Any, text: str) -> protocol.RephraseOutput:
    return protocol.RephraseOutput(
        chunk=chunk.index,
        style=style,
        source_sha256=chunk.sha256,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        tokens=len(text.split()),
    )


def start_volunteer(name: str, salt: str | None = None, **fields: Any) -> VolunteerAgent:
    """Register a node that claims a rephrase session."""
    sessions.queue_sessions()
    node, token = create_node(name, **{"packets": Node.Packets.ONLY, **fields})
    hardware = HARDWARE.model_copy(
        update={"kinds": ("rephrase",), "rephraser": protocol.Rephraser(back_end="rules", models=("tiny",))}
    )
    return VolunteerAgent(Agent(token, hardware=hardware).claim_job(), node, name if salt is None else salt)


def write_garbage(text: str, style: str) -> str:
    return "Buy cheap watches now at our wonderful store, only today and only for you, dear friend."


def copy_source(text: str, style: str) -> str:
    return text
