"""Whether a node works: its self-tests, the faults of its jobs, and the state `failing`, which only this module sets.

A slot gets no job before it has passed a self-test (`scheduler.self_tests`) with this installation and release. A node
whose self-test fails, or whose job fails because of the machine, is failing and gets no job. After a fault it is tested
again by itself, and works again if it passes; after `OWNER_AFTER` faults in a row only when its owner asks for a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone
from pydantic import ValidationError

import trainer
from scheduler import storage
from scheduler.matching import SELF_TEST_KIND
from scheduler.models import SITE_ACTOR, Event, Job, Lease, Node
from scheduler.transitions import transition
from trainer import protocol

UNTESTED_KINDS = {"rephrase"}
"""Kinds of job that need neither torch nor a sandbox. Each packet of a rephrasing session is checked anyway."""
OWNER_AFTER = 3
"""Faults in a row after which a passed self-test is not enough."""
FIRST_REST = timedelta(seconds=5)
LONGEST_REST = timedelta(minutes=10)
"""Pauses of nodes without a self-test, after the second fault in a row."""
OUTDATED_REASON = "Update dailytrain on it and start it again."
FAILING_EVENT = "failing"
"""Part of the event that a node is failing."""
MALFORMED_REASON = "The result of its self-test is malformed."
WORKING_STATES = (Node.State.NEW, Node.State.OFFLINE, Node.State.TESTING, Node.State.ONLINE)


# --- self-tests -------------------------------------------------------------------------------------------------------


def is_self_test_required(node: Node) -> bool:
    """Return whether the node takes jobs that its self-test speaks for."""
    kinds = node.hardware.get("kinds")
    return node.packets != Node.Packets.ONLY and (kinds is None or not set(kinds) <= UNTESTED_KINDS)


def supports_self_test(node: Node) -> bool:
    kinds = node.hardware.get("kinds")
    return kinds is None or SELF_TEST_KIND in kinds


@cache
def hash_release() -> str:
    """Return the hash of the release that new jobs run, which does not change while this process runs."""
    return hashlib.sha256(storage.pack_sources(Path(trainer.__file__).parent)).hexdigest()


def build_test_key(node: Node) -> dict[str, Any]:
    """Return what a self-test speaks for: it is repeated when one of these changes."""
    return {
        "installation": node.hardware.get("installation") or "",
        "release": hash_release(),
        "slots": node.slots,
    }


def find_slot_test(node: Node, slot: int) -> Mapping[str, Any] | None:
    """Return the slot's latest self-test if it speaks for the node as it is now.

    Its keys are those of `build_test_key`, `passed`, `at`, `reason` of a failure and `result`, a
    `protocol.SelfTestResult`.
    """
    found: Mapping[str, Any] | None = node.self_tests.get(str(slot))
    return found if found and found.items() >= build_test_key(node).items() else None


def is_slot_proven(node: Node, slot: int) -> bool:
    """Return whether the slot may get a job."""
    if not is_self_test_required(node):
        return True
    test = find_slot_test(node, slot)
    return test is not None and test["passed"]


def is_self_test_due(node: Node, slot: int) -> bool:
    """Return whether the slot's next job is a self-test."""
    if node.state not in (*WORKING_STATES, Node.State.FAILING) or needs_owner(node):
        return False
    return is_self_test_required(node) and supports_self_test(node) and find_slot_test(node, slot) is None


def needs_owner(node: Node) -> bool:
    """Return whether a failing node waits for its owner."""
    return node.state == Node.State.FAILING and node.failures >= OWNER_AFTER


def update_state(node: Node, actor: str) -> None:
    """Bring the state of a node that sends requests up to date with its self-tests. A failing node stays failing."""
    if node.state not in WORKING_STATES:
        return
    if is_self_test_required(node) and not supports_self_test(node):
        mark_failing(node, Node.Fault.OUTDATED, OUTDATED_REASON)
        return
    to = Node.State.ONLINE if any(is_slot_proven(node, slot) for slot in range(node.slots)) else Node.State.TESTING
    if node.state != to:
        since = [state for state in WORKING_STATES if state != to]
        transition(node, to, since=since, actor=actor, message=f"{node.name} is {to.value}.", reason="", fault="")


def request_self_test(node: Node, by: str) -> bool:
    """Let every slot prove itself again before its next job, as the owner asked: faults so far are forgiven."""
    requested = Node.objects.filter(pk=node.pk, state__in=[*WORKING_STATES, Node.State.FAILING])
    changed = requested.update(self_tests={}, failures=0)
    node.refresh_from_db()
    if changed:
        Event.record(by, node, f"{by} asked for a self-test.")
    return changed == 1


# --- the end of a lease -----------------------------------------------------------------------------------------------


@transaction.atomic
def record_success(node: Node, job: Job) -> None:
    """A job ended here by its own doing: it is done, or its model failed. A self-test has been passed."""
    if job.kind == SELF_TEST_KIND:
        is_valid = is_test_result(job.result)
        record_self_test(node, job, passed=is_valid, reason="" if is_valid else MALFORMED_REASON)
    elif node.failures or node.rest_until:
        Node.objects.filter(pk=node.pk).update(failures=0, rest_until=None)


@transaction.atomic
def record_machine_fault(lease: Lease, reason: str) -> None:
    """A lease failed because of its node, for `reason`: the node gets no further job until it has proven itself."""
    node = lease.node
    Lease.objects.filter(pk=lease.pk).update(machine_fault=True)
    if lease.job.kind == SELF_TEST_KIND:
        record_self_test(node, lease.job, passed=False, reason=reason)
        return
    Node.objects.filter(pk=node.pk).update(failures=F("failures") + 1)
    node.refresh_from_db()
    if not is_self_test_required(node):
        rest(node)
        return
    Node.objects.filter(pk=node.pk).update(self_tests={})
    node.self_tests = {}
    mark_failing(node, Node.Fault.JOB, reason)


def is_test_result(result: dict[str, Any]) -> bool:
    try:
        protocol.SelfTestResult.model_validate(result)
    except ValidationError:
        return False
    return True


def record_self_test(node: Node, job: Job, *, passed: bool, reason: str = "") -> None:
    """Store the test of a slot. A failure makes the node failing; a pass ends that, unless another slot has failed."""
    slot = Lease.objects.values_list("slot", flat=True).get(job=job, node=node, attempt=job.attempts)
    current = Node.objects.select_for_update().get(pk=node.pk)
    test = {"passed": passed, "at": timezone.now().isoformat(), "reason": reason, "result": job.result}
    current.self_tests = {**current.self_tests, str(slot): {**build_test_key(current), **test}}
    current.save(update_fields=["self_tests"])
    node.refresh_from_db()
    if not passed:
        mark_failing(node, Node.Fault.SELF_TEST, reason)
        return
    tests = [find_slot_test(node, number) for number in range(node.slots)]
    if not needs_owner(node) and all(found is None or found["passed"] for found in tests):
        since = [Node.State.TESTING, Node.State.FAILING]
        message = f"{node.name} passed its self-test and takes jobs."
        transition(node, Node.State.ONLINE, since=since, actor=SITE_ACTOR, message=message, reason="", fault="")


def mark_failing(node: Node, fault: Node.Fault, reason: str) -> None:
    """Make the node failing. One that is drained or paused stays so, and is tested before it works again."""
    message = f"{node.name} gets no jobs, because {fault.label}: {reason}"
    since = [*WORKING_STATES, Node.State.FAILING]
    fields: dict[str, Any] = {"reason": reason[:500], "fault": fault}
    kind, failing = FAILING_EVENT, Node.State.FAILING
    transition(node, failing, since=since, actor=SITE_ACTOR, message=message, event_kind=kind, **fields)


def rest(node: Node) -> None:
    """Let a node without a self-test pause, from its second fault in a row on, twice as long each time."""
    if node.failures < 2:
        return
    until = timezone.now() + min(FIRST_REST * 2 ** min(node.failures - 2, 10), LONGEST_REST)
    if Node.objects.filter(Q(rest_until=None) | Q(rest_until__lt=until), pk=node.pk).update(rest_until=until):
        message = f"{node.failures} jobs in a row failed on {node.name} because of the machine. It rests for a while."
        Event.record(SITE_ACTOR, node, message)


# --- for pages --------------------------------------------------------------------------------------------------------


def describe_failure(node: Node) -> str:
    """Return why a failing node gets no job and what ends that, in two or three sentences."""
    why = f"It gets no jobs, because {Node.Fault(node.fault).label}: {node.reason}".rstrip(".")
    if node.fault == Node.Fault.OUTDATED:
        return f"{why}."
    if needs_owner(node):
        return f"{why}. {node.failures} jobs in a row failed. Mend it, then press “Test again” on its page."
    if any(is_self_test_due(node, slot) for slot in range(node.slots)):
        return f"{why}. It is tested again when it is free."
    return f"{why}. Mend it, then start its agent again or press “Test again” on its page."


def list_slot_tests(node: Node) -> list[tuple[int, Mapping[str, Any] | None]]:
    """Return the number of each slot, from 1, and its current self-test; nothing if the node needs none."""
    if not is_self_test_required(node):
        return []
    return [(slot + 1, find_slot_test(node, slot)) for slot in range(node.slots)]
