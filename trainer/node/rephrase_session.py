"""A rephrasing session: fetches packets ahead of time, rephrases them with many threads, and submits the results.

One thread (the slot's) talks to the site, the others to the back end. Neither waits for the other while there is work.
Every request for packets lists the pending ones, so a packet whose reply was lost is sent again. A submission is
repeated until the site replies; the site replies to a repetition as to the first one.
"""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer import protocol
from trainer.node.client import BACKOFF_MAX_SECONDS, BACKOFF_SECONDS, ServerUnreachableError, retry_until_reachable
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobInterruptedError
from trainer.node.stop_signal import StopLevel
from trainer.rephrase.backends import (
    BackendError,
    BackendUnavailableError,
    Completion,
    CompletionClient,
    PromptRejectedError,
)
from trainer.rephrase.checks import REASONS, Thresholds, compute_duplicate_key, merge_thresholds
from trainer.rephrase.writing import ChunkResult, ChunkTask, rephrase_chunk

TASKS_AHEAD = 3  # queued tasks per running one: work for the back end during a request to the site
MAX_TAKE = 64
BATCH = 16  # packets submitted together
BATCH_BYTES = 1_500_000
BATCH_SECONDS = 2.0  # how long a finished packet waits for others to be submitted with
CHECK_SECONDS = 0.1
EMPTY_SECONDS = 5.0  # until the next request if there were no packets and the site named no time
BACKEND_SECONDS = 600.0  # how long a back end may be unavailable; then the packets are returned
MIN_EMPTY_SESSION_SECONDS = 20.0  # minimum duration of a session without packets; avoids busy polling
TAKING_SHARE = 0.9  # share of the session's time in which packets are taken; the rest is for pending ones
MAX_REJECTIONS = 5  # consecutive ones after which the back end, not the texts, is at fault
SUBMIT_SECONDS = 60.0  # how long the site may take to check a batch
SAMPLE_LENGTH = 240  # characters of a sample text that are shown
MAX_REASONS = 4  # that are shown


class RephraseStats:
    """Counters of a session. Changed and read under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started_at = time.monotonic()
        self.packets = 0
        self.outputs = 0
        self.accepted = 0  # by the site
        self.tokens = 0
        self.writing = 0  # prompts that the back end is completing
        self.waiting = 0  # tasks not yet sent to the back end
        self.refused: Counter[str] = Counter()  # by the site, per reason
        self.sample = ("", "", "")  # style, source and output of the latest text that passed our own checks
        self.trouble = ""  # why the session waits for the back end; "" if it does not

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


class SessionEndingError(Exception):
    """The session ends, so this task is not needed any more."""


@dataclass
class PendingPacket:
    packet: protocol.Packet
    tasks_left: int
    outputs: dict[tuple[int, str], protocol.RephraseOutput] = field(default_factory=dict)


class RephraseSession:
    def __init__(
        self, job: Job, order: protocol.RephraseOrder, client: CompletionClient, parallel: int, stats: RephraseStats
    ) -> None:
        self._job = job
        self._order = order
        self._client = client
        self._parallel = parallel
        self._stats = stats
        self._thresholds: Mapping[str, Thresholds] = merge_thresholds(order.thresholds)
        self._path = f"/leases/{job.lease}/packets"
        self._changed = threading.Condition()  # guards the five fields below
        self._pending: dict[int, PendingPacket] = {}
        self._ready: deque[int] = deque()
        self._accepted_keys: set[str] = set()
        self._rejections = 0
        self._error = ""  # why the session cannot continue
        self._ending = threading.Event()
        self._tasks: queue.SimpleQueue[ChunkTask | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_tasks, name=f"rephraser {number}", daemon=True)
            for number in range(parallel)
        ]
        now, limit = time.monotonic(), job.limits.wall_seconds
        self._is_done = False  # whether no more packets are taken
        self._is_empty = True  # whether the site has sent no packets so far
        self._next_take_at = 0.0
        self._started_at = self._submitted_at = now
        self._take_until, self._end_at = now + TAKING_SHARE * limit, now + limit

    def run(self) -> None:
        """Run the session; raise `JobInterruptedError`, `JobFailedError` or `RequestRefusedError`."""
        for thread in self._threads:
            thread.start()
        try:
            while not self._is_over():
                self._step()
            self._submit_ready(flush=True)
        finally:
            self._ending.set()
            for _ in self._threads:
                self._tasks.put(None)

    def _step(self) -> None:
        is_finishing = self._job.stop_signal.level is StopLevel.FINISH
        if not is_finishing:
            self._job.check_stop()
        if is_finishing or self._error:
            self._ending.set()
            self._submit_ready(flush=True)
            raise JobInterruptedError if is_finishing else JobFailedError(self._error)
        self._submit_ready(flush=self._is_done)
        if self._needs_packets():
            self._take_packets()
        with self._changed:
            if not self._ready:
                self._changed.wait(CHECK_SECONDS)

    def _is_over(self) -> bool:
        now = time.monotonic()
        self._is_done = self._is_done or now > self._take_until
        with self._changed:
            if self._is_empty and now < self._started_at + MIN_EMPTY_SESSION_SECONDS:
                return False
            return self._is_done and (not self._pending or now > self._end_at)

    # --- the site ---

    def _needs_packets(self) -> bool:
        if self._is_done or time.monotonic() < self._next_take_at:
            return False
        with self._changed:
            return self._count_tasks_left() < (1 + TASKS_AHEAD) * self._parallel

    def _count_tasks_left(self) -> int:
        return sum(pending.tasks_left for pending in self._pending.values())

    def _take_packets(self) -> None:
        with self._changed:
            held, left = tuple(self._pending), self._count_tasks_left()
        tasks_per_packet = max(1.0, left / len(held)) if held else float(len(self._order.styles))
        missing = (1 + TASKS_AHEAD) * self._parallel - left
        count = max(1, min(MAX_TAKE, round(missing / tasks_per_packet)))
        message = protocol.TakePackets(count=count, held=held)
        reply = retry_until_reachable(
            lambda: self._job.client.post(f"{self._path}/take", message, protocol.TakePacketsReply),
            self._job.stop_signal.is_stopping,
        )
        for packet in reply.packets:
            self._add_packet(packet)
        self._is_done = self._is_done or bool(reply.done)
        if not reply.packets:
            self._next_take_at = time.monotonic() + (reply.wait_seconds or EMPTY_SECONDS) * random.uniform(1, 1.25)

    def _add_packet(self, packet: protocol.Packet) -> None:
        for chunk in packet.chunks:
            if hashlib.sha256(chunk.text.encode()).hexdigest() != chunk.sha256:
                raise JobFailedError(f"Packet {packet.packet} is damaged: the hashes differ.")
        tasks = [ChunkTask(packet.packet, chunk, style) for chunk in packet.chunks for style in chunk.styles]
        with self._changed:
            if packet.packet in self._pending:
                return
            self._pending[packet.packet] = PendingPacket(packet, len(tasks))
            self._is_empty = False
        self._count(waiting=len(tasks))
        for task in tasks:
            self._tasks.put(task)

    def _submit_ready(self, flush: bool = False) -> None:
        """Submit finished packets if a batch is full or due, nothing else is pending, or `flush` is set."""
        while results := self._select_batch(flush):
            for verdict in self._submit(protocol.SubmitPackets(results=results)).verdicts:
                self._handle_verdict(verdict)
            self._submitted_at = time.monotonic()

    def _submit(self, message: protocol.SubmitPackets) -> protocol.SubmitPacketsReply:
        """Repeat the submission until there is a reply; raise `GaveUpError` when uploads should be dropped."""

        def submit_once() -> protocol.SubmitPacketsReply:
            path = f"{self._path}/submit"
            reply = self._job.client.post(path, message, protocol.SubmitPacketsReply, SUBMIT_SECONDS)
            if [verdict.packet for verdict in reply.verdicts] != [result.packet for result in message.results]:
                raise ServerUnreachableError("The site's reply is not about the submitted packets.")
            return reply

        return retry_until_reachable(submit_once, self._job.stop_signal.should_drop_uploads)

    def _select_batch(self, flush: bool) -> tuple[protocol.RephrasedPacket, ...]:
        with self._changed:
            is_due = time.monotonic() - self._submitted_at > BATCH_SECONDS
            is_full = len(self._ready) >= BATCH or len(self._ready) == len(self._pending)
            if not (flush or is_due or is_full):
                return ()
            results: list[protocol.RephrasedPacket] = []
            size = 0
            for number in list(self._ready)[:BATCH]:
                result = self._build_result(self._pending[number])
                size += sum(len(output.text.encode()) for output in result.outputs)
                if results and size > BATCH_BYTES:
                    break
                results.append(result)
            return tuple(results)

    def _build_result(self, pending: PendingPacket) -> protocol.RephrasedPacket:
        order, packet = self._order, pending.packet
        return protocol.RephrasedPacket(
            packet=packet.packet,
            prompt_version=order.prompt_version,
            model=order.model,
            revision=order.revision,
            sampling=order.sampling,
            back_end=self._client.title,
            outputs=tuple(pending.outputs[chunk.index, style] for chunk in packet.chunks for style in chunk.styles),
        )

    def _handle_verdict(self, verdict: protocol.PacketVerdict) -> None:
        """Drop a packet that the site has judged."""
        with self._changed:
            if verdict.packet in self._pending:
                self._ready.remove(verdict.packet)
                del self._pending[verdict.packet]
        with self._stats.lock:
            self._stats.packets += verdict.state != "gone"
            self._stats.outputs += len(verdict.outputs)
            self._stats.accepted += sum(output.accepted for output in verdict.outputs)
            self._stats.refused.update(output.reasons[0] for output in verdict.outputs if output.reasons)
            self._stats.refused.update(verdict.reasons[:1])

    # --- the back end ---

    def _run_tasks(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._ending.is_set():
                return
            self._count(waiting=-1, writing=1)
            try:
                result = rephrase_chunk(task, self._order, self._thresholds, self._accepted_keys, self._complete)
            except SessionEndingError:
                return
            except Exception as error:  # any error, a bug too, ends the session
                self._fail(str(error) if isinstance(error, BackendError) else f"Writing failed ({error!r}).")
                return
            finally:
                self._count(writing=-1)
            self._add_result(task, result)

    def _add_result(self, task: ChunkTask, result: ChunkResult) -> None:
        with self._changed:
            pending = self._pending[task.packet]
            pending.outputs[task.chunk.index, task.style] = result.output
            pending.tasks_left -= 1
            if result.is_accepted:
                self._accepted_keys.add(compute_duplicate_key(result.output.text))
            if pending.tasks_left == 0:
                self._ready.append(task.packet)
                self._changed.notify()
        with self._stats.lock:
            self._stats.tokens += result.tokens
            if result.is_accepted:
                self._stats.sample = (task.style, task.chunk.text, result.output.text)

    def _complete(self, prompt: str, sampling: Mapping[str, float], seed: int) -> Completion:
        """Complete a prompt; retry an unavailable back end for `BACKEND_SECONDS`.

        Raise `SessionEndingError`, `BackendError`, `PromptTooLongError` or `PromptRejectedError`.
        """
        unavailable_since, tries = 0.0, 0
        while not self._ending.is_set():
            try:
                completion = self._client.complete(prompt, sampling, seed)
            except BackendUnavailableError as error:
                unavailable_since = unavailable_since or time.monotonic()
                if time.monotonic() - unavailable_since > BACKEND_SECONDS:
                    minutes = f"{BACKEND_SECONDS / 60:.0f} minutes"
                    raise BackendError(f"{error} It has not replied for {minutes}.") from error
                self._set_trouble(str(error))
                self._ending.wait(random.uniform(0, min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2**tries)))
                self._client.recover()
                tries = min(tries + 1, 16)
            except PromptRejectedError as error:
                self._rejections += 1
                if self._rejections >= MAX_REJECTIONS:
                    raise BackendError(str(error)) from error
                raise
            else:
                self._rejections = 0
                self._set_trouble("")
                return completion
        raise SessionEndingError

    def _set_trouble(self, trouble: str) -> None:
        """Log once when the back end becomes unavailable, and once when it answers again."""
        with self._stats.lock:
            before, self._stats.trouble = self._stats.trouble, trouble
        if bool(before) != bool(trouble):
            self._job.log(f"{trouble} Retrying until it responds." if trouble else "The back end responds.")

    def _fail(self, error: str) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify()

    def _count(self, waiting: int = 0, writing: int = 0) -> None:
        with self._stats.lock:
            self._stats.waiting += waiting
            self._stats.writing += writing


def format_status_line(stats: RephraseStats) -> str:
    with stats.lock:
        share = f", {stats.accepted / stats.outputs:.0%} accepted" if stats.outputs else ""
        return (
            f"{stats.packets} packets submitted, {stats.outputs} texts{share},"
            f" {stats.tokens_per_second:.0f} tokens/s. {stats.trouble}"
        ).rstrip()


def build_status_rows(stats: RephraseStats) -> list[tuple[str, str]]:
    """Return name and value of each row of the panel."""
    with stats.lock:
        share = f"{stats.accepted / stats.outputs:.1%}" if stats.outputs else "-"
        backend = f"{stats.tokens_per_second:,.0f} tokens/s, {stats.writing} being written, {stats.waiting} waiting"
        style, source, output = stats.sample
        rows = [
            ("Packets", f"{stats.packets} submitted"),
            ("Texts", f"{stats.outputs} submitted, {stats.accepted} accepted by the site ({share})"),
            ("Back end", backend),
            ("Time", time.strftime("%H:%M:%S", time.gmtime(stats.seconds))),
        ]
        rows += [("Waiting", stats.trouble)] if stats.trouble else []
        reasons = stats.refused.most_common(MAX_REASONS)
    rows += [(f"Refused {count}", REASONS.get(reason, reason)) for reason, count in reasons]
    return rows + ([("Source", shorten_text(source)), (style.capitalize(), shorten_text(output))] if style else [])


def shorten_text(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= SAMPLE_LENGTH else f"{plain[:SAMPLE_LENGTH]}…"
