"""The in-memory node API with packets of rephrase sessions."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter

from tests.support import stdlib_release
from tests.support.model_server import NAME
from tests.support.node_api_server import HttpError, LeaseRecord, NodeApiServer, dump
from tests.support.waits import WAIT_SECONDS
from trainer import protocol
from trainer.rephrase.checks import check_envelope, check_output

ORDER = protocol.RephraseOrder(
    campaign="genesis", model=NAME, styles=("easy", "medium", "hard", "qa"), prompt_version=1
)


class PacketApiServer(NodeApiServer):
    def __init__(self, lease_seconds: float = 2.0) -> None:
        super().__init__(lease_seconds)
        self.order = ORDER
        self.waiting: list[protocol.Packet] = []
        self.assigned: dict[int, dict[int, protocol.Packet]] = {}
        """Assigned packets by lease."""
        self.taken: dict[int, protocol.RephrasedPacket] = {}
        self.submission_counts: Counter[int] = Counter()
        """Number of submissions per packet, including repeated ones."""
        self.stored_counts: Counter[int] = Counter()
        """Number of stored results per packet."""
        self.verdicts: dict[tuple[int, int], protocol.PacketVerdict] = {}
        self.volunteers: list[protocol.RegisterVolunteer] = []
        self.done_message = "All packets are done."
        """Message to the node when no packet is left. Empty: more may be added."""

    def add_packets(self, texts: list[str], styles: tuple[protocol.Style, ...] | None = None) -> None:
        for text in texts:
            number = 100 + len(self.waiting) + len(self.taken) + sum(map(len, self.assigned.values()))
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            chunk = protocol.Chunk(index=0, text=text, sha256=sha256, styles=styles or self.order.styles)
            self.waiting.append(protocol.Packet(packet=number, document=f"document {number}", chunks=(chunk,)))

    def queue_session(self, wall_seconds: float = WAIT_SECONDS) -> int:
        """Queue a rephrase session; return its lease."""
        limits = protocol.JobLimits(wall_seconds=wall_seconds, memory_bytes=10**9, disk_bytes=10**7, processes=8)
        release = self.store_blob(stdlib_release.build_tar(stdlib_release.FILES), "release.tar")
        spec = protocol.JobSpec(
            job=7, lease=0, node=0, attempt=1, release=release, order=self.order, limits=limits, issued_at=0
        )
        return self.queue_job(spec)

    def release_packets(self, lease: int) -> None:
        """Return the packets of a lease to the queue."""
        self.waiting = list(self.assigned.pop(lease, {}).values()) + self.waiting

    def handle(self, method: str, path: str, token: str, content: bytes) -> bytes:
        if path == "/volunteer":
            return self.volunteer(protocol.RegisterVolunteer.model_validate_json(content), token)
        return super().handle(method, path, token, content)

    def volunteer(self, message: protocol.RegisterVolunteer, token: str) -> bytes:
        if token:
            raise HttpError(401, "A volunteer without an account sends no token.")
        self.volunteers.append(message)
        node = 900 + len(self.volunteers)
        self.nodes[f"node-token-{node}"] = node
        public = base64.b64encode(self.key.public_key().public_bytes_raw()).decode()
        return dump(protocol.RegisterReply(node=node, token=f"node-token-{node}", public_key=public))

    def take_packets(self, held: LeaseRecord, content: bytes) -> bytes:
        if b'"count"' in content:
            return dump(self.assign_packets(held.spec.lease, protocol.TakePackets.model_validate_json(content)))
        results = protocol.SubmitPackets.model_validate_json(content).results
        verdicts = tuple(self.check_result(held.spec.lease, result) for result in results)
        return dump(protocol.SubmitPacketsReply(verdicts=verdicts))

    def assign_packets(self, lease: int, message: protocol.TakePackets) -> protocol.TakePacketsReply:
        out = self.assigned.setdefault(lease, {})
        again = [packet for number, packet in out.items() if number not in message.held]
        new, self.waiting = self.waiting[: message.count], self.waiting[message.count :]
        out.update({packet.packet: packet for packet in new})
        done = "" if self.waiting or out else self.done_message
        return protocol.TakePacketsReply(packets=(*again, *new), done=done, wait_seconds=0 if again or new else 0.1)

    def check_result(self, lease: int, result: protocol.RephrasedPacket) -> protocol.PacketVerdict:
        self.submission_counts[result.packet] += 1
        known = self.verdicts.get((lease, result.packet))
        packet = self.assigned.get(lease, {}).pop(result.packet, None)
        if known is not None:
            return known
        if packet is None:
            return protocol.PacketVerdict(packet=result.packet, state="gone")
        if reasons := check_envelope(result, packet.chunks, self.order):
            return protocol.PacketVerdict(packet=result.packet, state="refused", reasons=reasons)
        self.taken[result.packet] = result
        self.stored_counts[result.packet] += 1
        outputs = tuple(self.check_text(packet.chunks[output.chunk], output) for output in result.outputs)
        verdict = protocol.PacketVerdict(packet=result.packet, state="taken", outputs=outputs)
        self.verdicts[lease, result.packet] = verdict
        return verdict

    def check_text(self, chunk: protocol.Chunk, output: protocol.RephraseOutput) -> protocol.OutputVerdict:
        accepted, reasons = False, (output.trouble,)
        if output.ended != "none":
            found = check_output(chunk.text, output.style, output.text, ended=output.ended, language="en")
            accepted, reasons = found.accepted, found.reasons
        return protocol.OutputVerdict(chunk=chunk.index, style=output.style, accepted=accepted, reasons=reasons)

    def take_finish(self, held: LeaseRecord, content: bytes) -> bytes:
        self.release_packets(held.spec.lease)
        return super().take_finish(held, content)
