"""The slots of an agent: each polls and works in a thread of its own (`poll`).

When the sponsor stops the agent, pending polls are dropped and running jobs are waited for.
"""

from __future__ import annotations

import threading

from trainer.node.agent import CHECK_SECONDS, Agent, AgentStoppedError
from trainer.node.blobs import BlobCache, KeyedLocks
from trainer.node.console import log
from trainer.node.disk_quota import DATASETS, PREPARING
from trainer.node.hardware import list_processors
from trainer.node.identity import Identity
from trainer.node.poll import PollLoop
from trainer.node.slot_cleanup import kill_marked_processes
from trainer.node.slot_context import SlotContext
from trainer.node.slots import split_into_slots
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
