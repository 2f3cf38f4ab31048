"""Run a lease: the handler of its kind, its outcome, and the end of the lease at the site."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress

from trainer import protocol
from trainer.node.archives import ArchiveError
from trainer.node.checkpoint_sender import upload_missing_files
from trainer.node.client import (
    DamagedFileError,
    GaveUpError,
    RequestRefusedError,
    SiteClient,
    build_file_ref,
    retry_until_reachable,
)
from trainer.node.console import log
from trainer.node.identity import UntrustedOrderError, verify_order
from trainer.node.job import Job
from trainer.node.job_handlers import JOB_HANDLERS, REPHRASE_KIND
from trainer.node.outcome import JobFailedError, JobInterruptedError, JobOutcome
from trainer.node.senders import HeartbeatLoop, LogSender, stop_on_refusal
from trainer.node.slots import SlotContext
from trainer.node.stop_signal import SponsorSignal, StopLevel, StopSignal
from trainer.sandbox import SandboxError
from trainer.sandbox.safe_files import UnsafeFileError, open_file, sanitize_line

REASON_LENGTH = 500


def run_job(context: SlotContext, lease: protocol.Lease, client: SiteClient, sponsor: SponsorSignal) -> bool:
    """Run one job; return False if this node could not work on it and should pause before the next."""
    stop_signal = StopSignal(sponsor)
    client = client.with_token(lease.token)
    try:
        spec = verify_order(lease, context.identity)
    except UntrustedOrderError as error:
        log.error(str(error))
        finish_lease(client, lease.lease, JobOutcome("failed", str(error)), stop_signal)
        return False
    job = Job(context, spec, lease, client, stop_signal)
    heartbeat = HeartbeatLoop(client, lease.lease, lease.seconds, job.build_heartbeat, stop_signal)
    heartbeat.start()
    is_reported = False
    try:
        outcome = run_handler(job)
        job.phase = "uploading"
        is_reported = report_outcome(job, outcome)
    finally:
        heartbeat.end()
        with suppress(OSError):  # checked again, and reported, before the next job (`slot_cleanup`)
            is_known = is_reported or stop_signal.server_level is StopLevel.LOST
            job.workspace.remove(keep_folder=not is_known)
        context.quota.release(lease.lease)
    is_sound = outcome.outcome == "done" or outcome.fault != "machine"
    return is_sound or stop_signal.level > StopLevel.NONE


def run_handler(job: Job) -> JobOutcome:
    """Run the handler of the job's kind and turn every error into an outcome."""
    handler = JOB_HANDLERS[job.spec.order.kind]
    log_sender = LogSender(job)
    try:
        job.workspace.create()
        log_sender.start()
        if job.spec.order.kind != REPHRASE_KIND:  # it downloads models to other folders
            job.context.quota.reserve(job.lease, int(job.limits.disk_bytes))
        job.log(f"{handler.activity} (attempt {job.spec.attempt}).")
        return handler.run(job)
    except (JobInterruptedError, GaveUpError):
        return describe_interruption(job.stop_signal)
    except JobFailedError as error:
        return JobOutcome("failed", str(error), error.fault)
    except (ArchiveError, DamagedFileError, UnsafeFileError) as error:  # in the order's files: nothing has started
        return JobOutcome("failed", f"{error} Nothing was run.")
    except RequestRefusedError as error:
        stop_on_refusal(error, job.stop_signal)
        is_lost = job.stop_signal.server_level is StopLevel.LOST
        return describe_interruption(job.stop_signal) if is_lost else JobOutcome("failed", error.detail)
    except SandboxError as error:
        return JobOutcome("failed", str(error))
    except OSError as error:
        log.exception("Job %s failed.", job.spec.job)
        return JobOutcome("failed", f"The node failed: {error.strerror or type(error).__name__}.")
    except Exception as error:
        log.exception("Job %s failed.", job.spec.job)
        return JobOutcome("failed", f"The node's agent failed ({type(error).__name__}).")
    finally:
        log_sender.close()


def describe_interruption(stop_signal: StopSignal) -> JobOutcome:
    if stop_signal.error and stop_signal.level is StopLevel.NONE:
        return JobOutcome("failed", stop_signal.error)
    is_by_server = stop_signal.server_level >= stop_signal.sponsor.level
    return JobOutcome("released", stop_signal.reason if is_by_server else "The sponsor needs the machine.")


def report_outcome(job: Job, outcome: JobOutcome) -> bool:
    """Report the outcome to the server and the sponsor; return whether the server knows it."""
    files: tuple[protocol.FileRef, ...] = ()
    if job.stop_signal.server_level is StopLevel.LOST:
        log.warning("Job %s: the lease is lost: %s", job.spec.job, job.stop_signal.reason)
        return False
    with suppress(GaveUpError, RequestRefusedError):
        files = upload_result_files(job, outcome.files)
    is_reported = finish_lease(job.client, job.lease, outcome, job.stop_signal, files, job.seconds)
    if outcome.outcome == "done":
        job.log("done.")
    else:
        log.warning("Job %s: %s. %s", job.spec.job, outcome.outcome, outcome.reason)
    return is_reported


def upload_result_files(job: Job, names: Iterable[str]) -> tuple[protocol.FileRef, ...]:
    """Upload those of the small files that exist."""
    with ExitStack() as stack:
        files = {}
        for name in names:
            with suppress(OSError, UnsafeFileError):
                content = stack.enter_context(open_file(job.workspace.out, name))
                files[build_file_ref(name, content)] = content
        if files:
            upload_missing_files(job.client, f"/leases/{job.lease}", files, job.stop_signal)
        return tuple(files)


def finish_lease(
    client: SiteClient,
    lease: int,
    outcome: JobOutcome,
    stop_signal: StopSignal,
    files: tuple[protocol.FileRef, ...] = (),
    seconds: float | None = None,
) -> bool:
    """Send how the lease ends; return whether the server knows. `seconds`: as in a heartbeat."""
    message = protocol.FinishLease(
        outcome=outcome.outcome,
        cause=outcome.cause,
        fault=outcome.fault,
        reason=sanitize_line(outcome.reason, REASON_LENGTH),
        result=outcome.result,
        files=files,
        seconds=seconds,
    )
    path = f"/leases/{lease}/finish"
    try:
        retry_until_reachable(lambda: client.post_without_reply(path, message), stop_signal.has_given_up)
    except RequestRefusedError as error:
        log.warning("The server rejected the end of lease %s: %s", lease, error.detail)
        return True  # a refusal shows that the server knows
    except GaveUpError:
        return False
    return True
