"""Uploads complete checkpoints and milestones from the job's folder while it runs."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError

from trainer.node.client import SiteClient, build_file_ref, retry_until_reachable
from trainer.node.console import log
from trainer.node.job import Job
from trainer.node.senders import BackgroundSender
from trainer.node.stop_signal import StopSignal
from trainer.node.transfers import upload_file
from trainer.protocol import BlobQuery, Checkpoint, CheckpointUploaded, FileRef, MissingBlobs
from trainer.protocol.files import CHECKPOINTS_FOLDER, RUN_FILE
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, open_folder, read_json_object

MILESTONES_FOLDER = "milestones"  # weights in bf16 at every so many percent of the budget
MANIFEST = "manifest.json"
"""Written last, so its existence means the checkpoint is complete. It is uploaded with the other files."""
FOLDER_NAME = re.compile(r"step-(\d{8,12})")
MAX_FILES = 64
MANIFEST_BYTES = 256_000
KEPT_CHECKPOINTS = 2  # uploaded checkpoints that stay on this machine


class CheckpointSender(BackgroundSender):
    def __init__(self, job: Job, last_step: int, upload_seconds: float | None = None) -> None:
        """`last_step`: of the latest checkpoint that the server has; -1 for none.

        `upload_seconds`: shortest time between two uploads before the process has ended; None sends every checkpoint.
        """
        super().__init__(job.client, job.lease, job.stop_signal, "checkpoints")
        self._out = job.workspace.out
        self._last_step = last_step
        self._unreadable: set[int] = set()  # steps of checkpoints that could not be read
        self._upload_seconds = upload_seconds
        self._sent_at = time.monotonic()

    def send_next(self) -> bool:
        """Send the oldest milestone, or a checkpoint; once the job ends, first the checkpoint to resume from."""
        if self._closing.is_set():
            return self._send_next_checkpoint() or self._send_next_milestone()
        if self.stop_signal.is_stopping():  # the last checkpoint is being written: no milestone may delay it
            return self._send_next_checkpoint()
        return self._send_next_milestone() or self._send_next_checkpoint()

    def _send_next_milestone(self) -> bool:
        """Send the oldest milestone and remove it here."""
        for step, name in list_checkpoints(self._out, MILESTONES_FOLDER):
            with suppress(OSError, UnsafeFileError), ExitStack() as stack:
                milestone = open_checkpoint(self._out, f"{MILESTONES_FOLDER}/{name}", step, stack)
                if milestone is None:
                    continue
                self._send(*milestone)
                log.info("The weights of step %s are with the server.", step)
            remove_folders(self._out, MILESTONES_FOLDER, [name])
            return True
        return False

    def _send_next_checkpoint(self) -> bool:
        """Send the oldest unsent checkpoint; with an interval, the newest one if it is due or the last."""
        checkpoints = list_checkpoints(self._out)
        if self._upload_seconds is not None:
            if time.monotonic() - self._sent_at < self._upload_seconds and not self._closing.is_set():
                return False
            checkpoints.reverse()
        for step, name in checkpoints:
            if step <= self._last_step or step in self._unreadable:
                continue
            started = time.monotonic()
            try:
                with ExitStack() as stack:
                    checkpoint = open_checkpoint(self._out, f"{CHECKPOINTS_FOLDER}/{name}", step, stack)
                    if checkpoint is None:
                        continue
                    self._send(*checkpoint)
            except FileNotFoundError:  # the job removed it meanwhile: the next one is sent instead
                continue
            except (OSError, UnsafeFileError) as error:
                log.warning("The checkpoint of step %s cannot be sent: %s", step, error)
                self._unreadable.add(step)
                continue
            self._sent_at = started
            log.info("The checkpoint of step %s is with the server.", step)
            self._last_step = step
            self._remove_old()
            return True
        return False

    def _send(self, checkpoint: Checkpoint, files: Sequence[BufferedReader]) -> None:
        with ExitStack() as stack:
            run_file = self._open_run_file(stack)
            contents = dict(zip(checkpoint.files, files, strict=True)) | run_file
            upload_missing_files(self.client, self.lease_path, contents, self.stop_signal)
        message = CheckpointUploaded(checkpoint=checkpoint, files=tuple(run_file))
        retry_until_reachable(
            lambda: self.client.post_without_reply(f"{self.lease_path}/checkpoints", message),
            self.stop_signal.has_given_up,
        )

    def _open_run_file(self, stack: ExitStack) -> dict[FileRef, BufferedReader]:
        """Open `run.json`, which makes the checkpoint usable before the run has ended; empty if there is none."""
        with suppress(OSError, UnsafeFileError):
            file = stack.enter_context(open_file(self._out, RUN_FILE))
            return {build_file_ref(RUN_FILE, file): file}
        return {}

    def _remove_old(self) -> None:
        """Remove uploaded checkpoints except the newest."""
        uploaded = [name for step, name in list_checkpoints(self._out) if step <= self._last_step]
        remove_folders(self._out, CHECKPOINTS_FOLDER, uploaded[:-KEPT_CHECKPOINTS])


def remove_folders(out: Path, folder: str, names: Sequence[str]) -> None:
    """Remove checkpoints of a folder of the job, as far as that is possible."""
    if not names:
        return
    with suppress(OSError):
        parent = open_folder(out, folder)
        try:
            for name in names:
                shutil.rmtree(name, dir_fd=parent)
        finally:
            os.close(parent)


def list_checkpoints(out: Path, folder: str = CHECKPOINTS_FOLDER) -> list[tuple[int, str]]:
    """Return step and folder name of each checkpoint, complete or not, by step."""
    matches = [(name, FOLDER_NAME.fullmatch(name)) for name in list_folder(out, folder)]
    return sorted((int(match[1]), name) for name, match in matches if match)


def open_checkpoint(
    out: Path, folder: str, step: int, stack: ExitStack
) -> tuple[Checkpoint, list[BufferedReader]] | None:
    """Return a checkpoint's description and its open files; None while it is incomplete.

    The hashes are computed here; raise `UnsafeFileError` if they or the step differ from its manifest's.
    """
    fields = read_json_object(out, f"{folder}/{MANIFEST}", MANIFEST_BYTES)
    if fields is None:
        return None
    try:
        manifest = Checkpoint.model_validate(fields)
    except ValidationError as error:
        raise UnsafeFileError("The checkpoint's manifest cannot be understood.") from error
    if manifest.step != step or len(manifest.files) > MAX_FILES:
        raise UnsafeFileError("The checkpoint's manifest is of another checkpoint.")
    refs, files = [], []
    for name in [*(file.path for file in manifest.files), MANIFEST]:
        file = stack.enter_context(open_file(out, f"{folder}/{name}"))
        refs.append(build_file_ref(name, file))
        files.append(file)
    if tuple(refs[:-1]) != manifest.files:
        raise UnsafeFileError("The checkpoint's files are not those of its manifest.")
    return manifest.model_copy(update={"files": tuple(refs)}), files


def upload_missing_files(
    client: SiteClient, lease: str, files: dict[FileRef, BufferedReader], stop_signal: StopSignal
) -> None:
    """Upload the files that the server does not have yet. Safe to repeat."""
    query = BlobQuery(files=tuple(files))
    reply = retry_until_reachable(lambda: client.post(f"{lease}/blobs", query, MissingBlobs), stop_signal.has_given_up)
    missing = set(reply.sha256)
    for file, content in files.items():
        if file.sha256 in missing:
            missing.discard(file.sha256)
            upload_file(client, f"{lease}/blobs/{file.sha256}", file.size, content, stop_signal.has_given_up)
