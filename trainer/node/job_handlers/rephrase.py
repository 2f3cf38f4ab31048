"""A sitting of a volunteer's: texts of a campaign, rephrased by the back end that this node's owner has set up.

No code of anybody's runs for it, so there is no sandbox: packets are text, and so is what comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.node.slot_cleanup import MARK_VARIABLE, build_mark
from trainer.protocol import RephraseOrder, RephraseResult

if TYPE_CHECKING:
    from trainer.node.job import Job
    from trainer.rephrase.backends import BackendContext
    from trainer.rephrase.flags import RephraseOffer

DOING = "rephrasing"


def run(job: Job) -> JobOutcome:
    from trainer.node.rephrase_session import RephraseSession
    from trainer.node.status_display import RephraseStats, StatusDisplay
    from trainer.rephrase.backends import BackendError, load_backend

    order = job.spec.order
    assert isinstance(order, RephraseOrder)
    setup = fitting(job.place.offer, order).backend
    chosen = load_backend(setup.kind)
    tally = RephraseStats()
    try:
        with chosen.open_client(setup, order.model, order.revision, place(job)) as writer:
            job.check_wishes()
            title, alone = f"{order.campaign} with {order.model}", job.place.lane.lanes == 1
            with job.metered(), StatusDisplay(title, tally, job.say, alone):
                RephraseSession(job, order, writer, setup.parallel or chosen.DEFAULT_PARALLEL, tally).work()
            result = RephraseResult(
                packets=tally.packets,
                outputs=tally.outputs,
                accepted=tally.accepted,
                tokens=tally.tokens,
                seconds=tally.seconds,
                back_end=writer.title,
            )
    except BackendError as error:
        raise JobFailedError(str(error)) from error
    job.say(f"{tally.packets} packets handed in, {tally.accepted} of {tally.outputs} texts taken.")
    return JobOutcome("done", result=result.model_dump())


def fitting(offer: RephraseOffer | None, order: RephraseOrder) -> RephraseOffer:
    """Return what this node writes with; raise `Failed` if that is not what the campaign needs."""
    from trainer.rephrase.checks import merge_thresholds
    from trainer.rephrase.prompts import get_instructions

    if offer is None:
        raise JobFailedError("This node has nothing to rephrase with.")
    if offer.models is not None and order.model not in offer.models:
        raise JobFailedError(
            f"This node writes with {', '.join(offer.models)}, and the campaign asks for {order.model}."
        )
    try:
        merge_thresholds(order.thresholds)
        for style in order.styles:
            get_instructions(style, order.prompt_version)
    except ValueError as error:
        raise JobFailedError(str(error)) from error
    return offer


def place(job: Job) -> BackendContext:
    from trainer.rephrase.backends import BackendContext

    lane = job.place.lane
    log = job.place.home / f"back-end-{lane.number}.log"  # the volunteer's own: not sent, and still there afterwards
    log.write_bytes(b"")
    environment = lane.environment() | {MARK_VARIABLE: build_mark(job.place.home, job.lease)}
    return BackendContext(log, environment, len(lane.gpus), job.unwanted)
