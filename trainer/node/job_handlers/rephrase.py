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
    from trainer.rephrase.backends import Place
    from trainer.rephrase.flags import Offer

DOING = "rephrasing"


def run(job: Job) -> JobOutcome:
    from trainer.node.rephrase_session import RephraseSession
    from trainer.node.status_display import RephraseStats, StatusDisplay
    from trainer.rephrase.backends import BackEndError, back_end

    order = job.spec.order
    assert isinstance(order, RephraseOrder)
    setup = fitting(job.place.offer, order).setup
    chosen = back_end(setup.kind)
    tally = RephraseStats()
    try:
        with chosen.opened(setup, order.model, order.revision, place(job)) as writer:
            job.check_wishes()
            title, alone = f"{order.campaign} with {order.model}", job.place.lane.lanes == 1
            with job.metered(), StatusDisplay(title, tally, job.say, alone):
                RephraseSession(job, order, writer, setup.parallel or chosen.PARALLEL, tally).work()
            result = RephraseResult(
                packets=tally.packets,
                outputs=tally.outputs,
                accepted=tally.accepted,
                tokens=tally.tokens,
                seconds=tally.seconds,
                back_end=writer.title,
            )
    except BackEndError as error:
        raise JobFailedError(str(error)) from error
    job.say(f"{tally.packets} packets handed in, {tally.accepted} of {tally.outputs} texts taken.")
    return JobOutcome("done", result=result.model_dump())


def fitting(offer: Offer | None, order: RephraseOrder) -> Offer:
    """Return what this node writes with; raise `Failed` if that is not what the campaign needs."""
    from trainer.rephrase.checks import read_thresholds
    from trainer.rephrase.prompts import instructions

    if offer is None:
        raise JobFailedError("This node has nothing to rephrase with.")
    if offer.models is not None and order.model not in offer.models:
        raise JobFailedError(
            f"This node writes with {', '.join(offer.models)}, and the campaign asks for {order.model}."
        )
    try:
        read_thresholds(order.thresholds)
        for style in order.styles:
            instructions(style, order.prompt_version)
    except ValueError as error:
        raise JobFailedError(str(error)) from error
    return offer


def place(job: Job) -> Place:
    from trainer.rephrase.backends import Place

    lane = job.place.lane
    log = job.place.home / f"back-end-{lane.number}.log"  # the volunteer's own: not sent, and still there afterwards
    log.write_bytes(b"")
    environment = lane.environment() | {MARK_VARIABLE: build_mark(job.place.home, job.lease)}
    return Place(log, environment, len(lane.gpus), job.unwanted)
