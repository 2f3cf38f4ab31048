"""A sitting: packets are taken ahead of the back end, written by many threads at once, and handed in as they are ready.

One thread (the lane's) speaks with the site, the others with the back end; neither waits for the other as long as there
is something in hand. A packet in hand is named in every question for more, so that one whose answer was lost is sent
again; handing in is repeated until the site has answered, and it answers a repeat as it did the first time.
"""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer import protocol
from trainer.node.client import BACKOFF_MAX_SECONDS, BACKOFF_SECONDS, ServerUnreachableError, retry_until_reachable
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobInterruptedError
from trainer.node.status_display import RephraseStats
from trainer.node.stop_signal import StopLevel
from trainer.rephrase.backends import (
    BackendError,
    BackendUnavailableError,
    Completion,
    CompletionClient,
    PromptRejectedError,
    PromptTooLongError,
)
from trainer.rephrase.checks import Thresholds, compute_duplicate_key, merge_thresholds
from trainer.rephrase.writing import ChunkResult, ChunkTask, rephrase_chunk

AHEAD = 3
"""Pieces in hand for each that is being written: what the back end does while a question to the site is answered."""
TAKE_MOST = 64
BATCH = 16
"""Packets that are handed in together."""
BATCH_BYTES = 1_500_000
BATCH_SECONDS = 2.0
"""That a packet waits for others to be handed in with."""
LOOK_SECONDS = 0.1
EMPTY_SECONDS = 5.0
"""Until the next question when there was nothing to take and the site named no time."""
PATIENCE_SECONDS = 600.0
"""Of silence of the back end; then the packets go back, others may write them."""
IN_VAIN_SECONDS = 20.0
"""That a sitting lasts at least which was given nothing at all: whoever sat down again at once would do it for ever."""
SHARE_OF_TIME = 0.9
"""Of a sitting's time; what is in hand then gets the rest."""
DECLINES = 5
"""In a row: then it is not the texts."""
JUDGE_SECONDS = 60.0
"""That the site may take for its checks of a batch."""


class SessionEndingError(Exception):
    """Nobody wants this piece any more."""


@dataclass
class PendingPacket:
    packet: protocol.Packet
    left: int
    outputs: dict[tuple[int, str], protocol.RephraseOutput] = field(default_factory=dict)


class RephraseSession:
    def __init__(
        self, job: Job, order: protocol.RephraseOrder, writer: CompletionClient, parallel: int, tally: RephraseStats
    ) -> None:
        self._job = job
        self._order = order
        self._writer = writer
        self._parallel = parallel
        self._tally = tally
        self._thresholds: Mapping[str, Thresholds] = merge_thresholds(order.thresholds)
        self._path = f"/leases/{job.lease}/packets"
        self._changed = threading.Condition()
        """Guards what follows."""
        self._held: dict[int, PendingPacket] = {}
        self._ready: deque[int] = deque()
        self._known: set[str] = set()
        self._declined = 0
        self._trouble = ""
        """Why it cannot go on."""
        self._ending = threading.Event()
        self._pieces: queue.SimpleQueue[ChunkTask | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._write_on, name=f"writer {number}", daemon=True) for number in range(parallel)
        ]
        self._done = ""
        """Why no more are taken."""
        self._take_at = 0.0
        self._begun_at = time.monotonic()
        self._in_vain = True
        """Nothing was given so far."""
        self._handed_in_at = time.monotonic()
        self._until = time.monotonic() + SHARE_OF_TIME * job.spec.limits.wall_seconds
        self._give_up = time.monotonic() + job.spec.limits.wall_seconds

    def work(self) -> None:
        """Return when there is nothing more to do. Raise `Interrupted`, `Failed`, or what the site refuses with."""
        for thread in self._threads:
            thread.start()
        try:
            while not self._over():
                self._step()
            self._hand_in(everything=True)
        finally:
            self._ending.set()
            for _ in self._threads:
                self._pieces.put(None)

    def _step(self) -> None:
        if self._job.wishes.stop is StopLevel.FINISH:
            self._ending.set()
            self._hand_in(everything=True)
            raise JobInterruptedError
        self._job.check_wishes()
        if self._trouble:
            self._ending.set()
            self._hand_in(everything=True)
            raise JobFailedError(self._trouble)
        self._hand_in(everything=bool(self._done))
        if self._wants_more():
            self._take()
        with self._changed:
            if not self._ready:
                self._changed.wait(LOOK_SECONDS)

    def _over(self) -> bool:
        if not self._done and time.monotonic() > self._until:
            self._done = "The time of this sitting is up."
        with self._changed:
            if self._in_vain and time.monotonic() < self._begun_at + IN_VAIN_SECONDS:
                return False
            return bool(self._done) and (not self._held or time.monotonic() > self._give_up)

    # --- the site ---

    def _wants_more(self) -> bool:
        if self._done or time.monotonic() < self._take_at:
            return False
        with self._changed:
            return self._left() < (1 + AHEAD) * self._parallel

    def _left(self) -> int:
        return sum(held.left for held in self._held.values())

    def _take(self) -> None:
        with self._changed:
            held, left = tuple(self._held), self._left()
            usual = max(1.0, left / len(held)) if held else float(len(self._order.styles))
        wanted = max(1, min(TAKE_MOST, round(((1 + AHEAD) * self._parallel - left) / usual)))
        question = protocol.TakePackets(count=wanted, held=held)
        answer = retry_until_reachable(
            lambda: self._job.client.post(f"{self._path}/take", question, protocol.TakePacketsReply), self._job.unwanted
        )
        for packet in answer.packets:
            self._receive(packet)
        self._done = self._done or answer.done
        if not answer.packets:
            self._take_at = time.monotonic() + (answer.wait_seconds or EMPTY_SECONDS) * random.uniform(1, 1.25)

    def _receive(self, packet: protocol.Packet) -> None:
        for chunk in packet.chunks:
            if hashlib.sha256(chunk.text.encode()).hexdigest() != chunk.sha256:
                raise JobFailedError(f"Packet {packet.packet} is not what the site says it is: the hashes differ.")
        pieces = [ChunkTask(packet.packet, chunk, style) for chunk in packet.chunks for style in chunk.styles]
        with self._changed:
            if packet.packet in self._held:
                return
            self._held[packet.packet] = PendingPacket(packet, len(pieces))
            self._in_vain = False
        self._count(waiting=len(pieces))
        for piece in pieces:
            self._pieces.put(piece)

    def _hand_in(self, everything: bool = False) -> None:
        """Hand in what is ready, once there is enough of it, or it has waited long enough, or nothing else is left."""
        while results := self._next_results(everything):
            for verdict in self._submit(protocol.SubmitPackets(results=results)).verdicts:
                self._settle(verdict)
            self._handed_in_at = time.monotonic()

    def _submit(self, message: protocol.SubmitPackets) -> protocol.SubmitPacketsReply:
        """Repeat it until there is an answer. Raise `GaveUp` when nobody wants to wait for one any more."""

        def once() -> protocol.SubmitPacketsReply:
            answer = self._job.client.post(
                f"{self._path}/submit", message, protocol.SubmitPacketsReply, patience=JUDGE_SECONDS
            )
            if [verdict.packet for verdict in answer.verdicts] != [result.packet for result in message.results]:
                raise ServerUnreachableError("The site's answer is not about what was handed in.")
            return answer

        wishes = self._job.wishes
        return retry_until_reachable(once, lambda: wishes.over() or wishes.stop >= StopLevel.RELEASE)

    def _next_results(self, everything: bool) -> tuple[protocol.RephrasedPacket, ...]:
        with self._changed:
            waited = time.monotonic() - self._handed_in_at > BATCH_SECONDS
            if not (everything or waited or len(self._ready) >= BATCH or len(self._ready) == len(self._held)):
                return ()
            results: list[protocol.RephrasedPacket] = []
            size = 0
            for number in list(self._ready)[:BATCH]:
                result = self._result(self._held[number])
                size += sum(len(output.text.encode()) for output in result.outputs)
                if results and size > BATCH_BYTES:
                    break
                results.append(result)
            return tuple(results)

    def _result(self, held: PendingPacket) -> protocol.RephrasedPacket:
        order = self._order
        return protocol.RephrasedPacket(
            packet=held.packet.packet,
            prompt_version=order.prompt_version,
            model=order.model,
            revision=order.revision,
            sampling=order.sampling,
            back_end=self._writer.title,
            outputs=tuple(held.outputs[chunk.index, style] for chunk in held.packet.chunks for style in chunk.styles),
        )

    def _settle(self, verdict: protocol.PacketVerdict) -> None:
        """The site has spoken: the packet is out of our hands."""
        with self._changed:
            if verdict.packet in self._held:
                self._ready.remove(verdict.packet)
                del self._held[verdict.packet]
        with self._tally.lock:
            self._tally.packets += verdict.state != "gone"
            self._tally.outputs += len(verdict.outputs)
            self._tally.accepted += sum(one.accepted for one in verdict.outputs)
            self._tally.refused.update(one.reasons[0] for one in verdict.outputs if one.reasons)
            self._tally.refused.update(verdict.reasons[:1])

    # --- the back end ---

    def _write_on(self) -> None:
        while (piece := self._pieces.get()) is not None:
            if self._ending.is_set():
                return
            self._count(waiting=-1, writing=1)
            try:
                made = rephrase_chunk(piece, self._order, self._thresholds, self._known, self._ask)
            except SessionEndingError:
                return
            except Exception as error:  # of ours, or of the back end: the sitting ends with it
                self._fail(str(error) if isinstance(error, BackendError) else f"Writing failed ({error!r}).")
                return
            finally:
                self._count(writing=-1)
            self._keep(piece, made)

    def _keep(self, piece: ChunkTask, made: ChunkResult) -> None:
        with self._changed:
            held = self._held[piece.packet]
            held.outputs[piece.chunk.index, piece.style] = made.output
            held.left -= 1
            if made.is_accepted:
                self._known.add(compute_duplicate_key(made.output.text))
            if held.left == 0:
                self._ready.append(piece.packet)
                self._changed.notify()
        with self._tally.lock:
            self._tally.tokens += made.tokens
            if made.is_accepted:
                self._tally.sample = (piece.style, piece.chunk.text, made.output.text)

    def _ask(self, question: str, sampling: Mapping[str, float], seed: int) -> Completion:
        """Ask until there is an answer.

        Raise `SessionEndingError`, `BackendError`, `PromptTooLongError` or `PromptRejectedError`.
        """
        silent_since, tries = 0.0, 0
        while not self._ending.is_set():
            try:
                answer = self._writer.complete(question, sampling, seed)
            except BackendUnavailableError as error:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE_SECONDS:
                    raise BackendError(
                        f"{error} It has not answered for {PATIENCE_SECONDS / 60:.0f} minutes."
                    ) from error
                self._told(str(error))
                self._ending.wait(random.uniform(0, min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2**tries)))
                self._writer.recover()
                tries = min(tries + 1, 16)
                continue
            except PromptRejectedError as error:
                self._decline(error)
                raise
            except PromptTooLongError:
                raise
            self._declined = 0
            self._told("")
            return answer
        raise SessionEndingError

    def _decline(self, error: PromptRejectedError) -> None:
        """Raise `BackendError` if it declines whatever it is asked."""
        self._declined += 1
        if self._declined >= DECLINES:
            raise BackendError(str(error)) from error

    def _told(self, trouble: str) -> None:
        """Say once that the back end is silent, and once that it is not any more."""
        with self._tally.lock:
            before, self._tally.trouble = self._tally.trouble, trouble
        if bool(before) != bool(trouble):
            self._job.say(f"{trouble} Trying again until it answers." if trouble else "The back end answers.")

    def _fail(self, sentence: str) -> None:
        with self._changed:
            self._trouble = self._trouble or sentence
            self._changed.notify()

    def _count(self, waiting: int = 0, writing: int = 0) -> None:
        with self._tally.lock:
            self._tally.waiting += waiting
            self._tally.writing += writing
