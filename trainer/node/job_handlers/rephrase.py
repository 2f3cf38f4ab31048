"""A rephrasing session: texts of a campaign, rephrased by the back end of this node's owner.

No untrusted code runs, so there is no sandbox: packets are text, and so are the results.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainer.node.console import StatusDisplay
from trainer.node.job import Job
from trainer.node.outcome import JobFailedError, JobOutcome
from trainer.node.slot_cleanup import MARK_VARIABLE, build_mark
from trainer.protocol import RephraseOrder, RephraseResult

if TYPE_CHECKING:
    from trainer.rephrase.backends import BackendContext
    from trainer.rephrase.flags import RephraseOffer


def rephrase_packets(job: Job) -> JobOutcome:
    from trainer.node.rephrase_session import RephraseSession, RephraseStats, build_status_rows, format_status_line
    from trainer.rephrase.backends import BackendError, load_backend

    order = job.spec.order
    assert isinstance(order, RephraseOrder)
    config = check_offer(job.context.offer, order).backend
    backend = load_backend(config.kind)
    context = build_backend_context(job, order)
    parallel = config.parallel or backend.choose_parallel(context)
    stats = RephraseStats()
    display = StatusDisplay(
        f"{order.campaign} with {order.model}",
        "Ctrl-C returns unfinished packets",
        partial(format_status_line, stats),
        partial(build_status_rows, stats),
        job.log,
        can_draw=job.context.slot.count == 1,
    )
    try:
        with backend.open_client(config, order.model, order.revision, context) as client:
            job.check_stop()
            job.log(f"{client.title} serves {order.model}: {parallel} prompts at a time.")
            with job.measure_time(), display:
                RephraseSession(job, order, client, parallel, stats).run()
            result = RephraseResult(
                packets=stats.packets,
                outputs=stats.outputs,
                accepted=stats.accepted,
                tokens=stats.tokens,
                seconds=stats.seconds,
                back_end=client.title,
            )
    except BackendError as error:
        raise JobFailedError(str(error)) from error
    rate = result.tokens / max(result.seconds, 1e-9)
    job.log(
        f"{stats.packets} packets submitted, {stats.accepted} of {stats.outputs} texts accepted;"
        f" {result.tokens} tokens at {rate:,.0f} tokens/s."
    )
    return JobOutcome("done", result=result.model_dump())


def check_offer(offer: RephraseOffer | None, order: RephraseOrder) -> RephraseOffer:
    """Return the node's offer; raise `JobFailedError` if it does not meet the campaign's needs."""
    from trainer.rephrase.checks import merge_thresholds
    from trainer.rephrase.prompts import get_instructions

    if offer is None:
        raise JobFailedError("This node has no rephrasing back end.")
    if offer.models is not None and order.model not in offer.models:
        models = ", ".join(offer.models)
        raise JobFailedError(f"This node offers {models}, but the campaign needs {order.model}.")
    try:
        merge_thresholds(order.thresholds)
        for style in order.styles:
            get_instructions(style, order.prompt_version)
    except ValueError as error:
        raise JobFailedError(str(error)) from error
    return offer


def build_backend_context(job: Job, order: RephraseOrder) -> BackendContext:
    from trainer.rephrase.backends import BackendContext

    slot, home = job.context.slot, job.context.home
    log_file = home / f"back-end-{slot.number}.log"  # for the volunteer: never uploaded, not removed after the session
    log_file.write_bytes(b"")
    environment = slot.build_environment() | {MARK_VARIABLE: build_mark(home, job.lease)}
    return BackendContext(
        log_file,
        environment,
        slot.gpus,
        job.stop_signal.is_stopping,
        needs_gigabytes=order.needs_gigabytes,
        speculative_tokens=order.speculative_tokens,
    )
