"""The slots of an agent: each polls, runs a job and cleans up in a thread of its own. The server sets the pace.

When the sponsor stops the agent, pending polls are dropped and running jobs are waited for.
"""

from __future__ import annotations

import logging
import random
import threading

from trainer import protocol
from trainer.node.agent import CHECK_SECONDS, Agent, AgentStoppedError
from trainer.node.blobs import BlobCache, KeyedLocks
from trainer.node.client import GaveUpError, sleep_unless
from trainer.node.console import log
from trainer.node.disk_quota import DATASETS, PREPARING
from trainer.node.hardware import list_processors
from trainer.node.identity import Identity
from trainer.node.job_handlers import SELF_TEST_KIND
from trainer.node.job_runner import run_job
from trainer.node.slot_cleanup import SlotCleanup, kill_marked_processes
from trainer.node.slots import SlotContext, split_into_slots
from trainer.node.stop_signal import StopLevel
from trainer.node.workspace import find_abandoned_leases, remove_folder
from trainer.sandbox.docker import DockerDriver

WEIGHTS_BYTES = 16e9  # Cache of the weights of models that generate text. A guess.


def run_slots(agent: Agent, identity: Identity, once: bool) -> None:
    """Work until the sponsor or the server stops it; raise `RequestRefusedError` if the server rejects the node."""
    agent.client = agent.client.with_token(identity.token)
    abandoned = remove_leftovers(agent)
    blobs, dataset_locks = BlobCache(agent.home / "blobs"), KeyedLocks()
    weights = BlobCache(agent.home / "weights", max_bytes=WEIGHTS_BYTES)
    evaluation_data = BlobCache(agent.home / "evaluation")
    while True:
        reader = agent.gpu_monitor.reader
        slots = split_into_slots(reader.gpus, list_processors(), agent.slot_count, bool(reader.unusable_gpus))
        shared = (agent.home, identity, agent.sandbox, blobs, weights, evaluation_data, agent.quota, agent.gpu_monitor)
        contexts = [SlotContext(*shared, slot, dataset_locks, agent.offer, agent.network) for slot in slots]
        run_loops(agent, [PollLoop(agent, context, abandoned, once) for context in contexts])
        if not agent.is_changing_slots or agent.sponsor.level > StopLevel.NONE:
            return
        abandoned, agent.slot_count = (), agent.next_slot_count
        jobs = f"{agent.slot_count} job{'s' if agent.slot_count > 1 else ''}"
        log.info("This machine now works on %s at a time.", jobs)


def run_loops(agent: Agent, loops: list[PollLoop]) -> None:
    """Run the slots until they end. An error in one stops all; the others release their jobs first."""
    for loop in loops:
        loop.start()
    never_set = threading.Event()  # waiting for it, unlike joining a thread, lets signals through
    while any(loop.is_alive() for loop in loops):
        is_stopped = agent.sponsor.level > StopLevel.NONE
        if is_stopped and not any(loop.is_working for loop in loops):
            break
        if not is_stopped and any(loop.error for loop in loops):
            agent.sponsor.request_stop()
        never_set.wait(CHECK_SECONDS)
    for loop in loops:
        if loop.error is not None:
            raise loop.error
    if agent.sponsor.level > StopLevel.NONE or any(loop.is_alive() for loop in loops):
        raise AgentStoppedError


def remove_leftovers(agent: Agent) -> tuple[int, ...]:
    """Remove what a killed agent left behind; return its leases."""
    if isinstance(agent.sandbox, DockerDriver):
        agent.sandbox.remove_stale_containers()
    kill_marked_processes(f"{agent.home}:")
    for folder in (agent.home / DATASETS).glob(f"{PREPARING}*"):
        remove_folder(folder)
    leases = find_abandoned_leases(agent.home)
    for lease in leases:
        remove_folder(agent.home / "work" / str(lease))
    if leases:
        jobs = f"{len(leases)} unfinished job{'s' if len(leases) > 1 else ''}"
        log.info("Removed the files of %s; the server will requeue.", jobs)
    return tuple(leases)


DEFAULT_POLL_SECONDS = 1.0  # between two polls if a reply has no `wait_seconds`
MAX_FAILURE_SECONDS = 60.0  # the longest pause after jobs that failed because of this node


class PollLoop(threading.Thread):
    def __init__(self, agent: Agent, context: SlotContext, abandoned: tuple[int, ...], once: bool) -> None:
        """`abandoned`: leases of a killed agent, reported with the first poll; `once`: end after one job."""
        super().__init__(name=str(context.slot), daemon=True)
        self.error: Exception | None = None  # what ended the loop: the server refused the node, or a bug
        self.is_working = False  # whether a job is running; the agent waits for it before it exits
        self.agent = agent
        self._context = context
        self._abandoned = abandoned
        self._once = once
        self._was_idle = False
        self._paused_for = ""
        self._problem = ""
        self._cleanup = SlotCleanup(context.home, context.slot, agent.gpu_monitor)

    def run(self) -> None:
        try:
            self._serve()
        except GaveUpError:
            return
        except Exception as error:  # raised again in the main thread
            self.error = error

    def _serve(self) -> None:
        failures = 0
        while not self._should_end():
            reply = self._poll()
            if reply.action == "stop":
                self._log(f"The server stops this node. {reply.reason}".rstrip())
                return
            if reply.lanes is not None and reply.lanes != self._context.slot.count:
                self.agent.change_slot_count(reply.lanes)
                return
            if reply.lease is None:
                self._log_idle(reply)
                self._sleep((reply.wait_seconds or DEFAULT_POLL_SECONDS) * random.uniform(1, 1.25))
                continue
            self.agent.quota.set_lent_bytes(reply.disk_bytes)
            is_self_test = f'"kind":"{SELF_TEST_KIND}"' in reply.lease.spec
            failures = 0 if self._run_job(reply.lease) else failures + 1
            if self._once and not is_self_test:
                return
            if failures:
                self._sleep(random.uniform(0.5, 1) * min(MAX_FAILURE_SECONDS, 2.0 ** (failures - 1)))

    def _should_end(self) -> bool:
        return self._is_leaving() or self.agent.is_changing_slots

    def _is_leaving(self) -> bool:
        return self.agent.sponsor.level > StopLevel.NONE

    def _run_job(self, lease: protocol.Lease) -> bool:
        self.is_working = True
        try:
            self._context.slot.bind_thread()
            self._cleanup.set_lease(lease.lease)
            was_workable = run_job(self._context, lease, self.agent.client, self.agent.sponsor)
            self._set_problem(self._cleanup.clean_up_slot(self._is_leaving))
            return was_workable
        finally:
            self.is_working = False

    def _poll(self) -> protocol.PollReply:
        agent, slot = self.agent, self._context.slot
        agent.gpu_monitor.update_idle(slot.number, slot.uuids, is_running=False)
        self._set_problem(self._cleanup.clean_up_once())
        message = protocol.Poll(
            hardware=agent.detect_hardware(),
            abandoned=self._abandoned,
            lane=slot.number,
            lanes=slot.count,
            lanes_wished=agent.requested_slots,
            health=agent.gpu_monitor.build_health(self._problem),
        )
        reply = agent.retry_until_stopped(lambda: agent.client.post("/poll", message, protocol.PollReply))
        self._abandoned = ()
        if reply.disk_bytes is not None:
            agent.quota.set_lent_bytes(reply.disk_bytes)
        return reply

    def _set_problem(self, problem: str) -> None:
        """Record what prevents the next job, and log it when it changes."""
        if problem and problem != self._problem:
            self._log(problem, logging.WARNING)
        elif self._problem and not problem:
            self._log("The slot is clean again.")
        self._problem = problem

    def _log_idle(self, reply: protocol.PollReply) -> None:
        if reply.action == "pause":
            if reply.reason != self._paused_for:
                self._log(f"Paused. {reply.reason}", logging.WARNING)
        elif not self._was_idle and not self._problem:
            self._log(f"Waiting for work. {reply.reason}".rstrip())
        self._was_idle = reply.action == "idle"
        self._paused_for = reply.reason if reply.action == "pause" else ""

    def _log(self, message: str, level: int = logging.INFO) -> None:
        slot = self._context.slot
        log.log(level, message if slot.count == 1 else f"{slot}: {message}")

    def _sleep(self, seconds: float) -> None:
        sleep_unless(self._should_end, seconds)
