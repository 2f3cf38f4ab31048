"""Checkpoints: from the job's folder to the server as soon as they are whole, and back again to go on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError

from trainer.node.background_sender import BackgroundSender
from trainer.node.client import SiteClient, build_file_ref, retry_until_reachable
from trainer.node.console import say
from trainer.node.stop_signal import StopSignal
from trainer.node.uploads import upload_file
from trainer.protocol import BlobQuery, Checkpoint, CheckpointUploaded, FileRef, MissingBlobs
from trainer.sandbox.safe_files import UnsafeFileError, list_folder, open_file, open_folder, read_json_object

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST = "manifest.json"
"""Written last: a folder that has it is whole. It is sent with the others."""
ABOUT = "run.json"
NAME = re.compile(r"step-(\d{8,12})")
FILES = 64
MANIFEST_BYTES = 256_000
KEPT = 2
"""Uploaded checkpoints that stay on this machine."""


class CheckpointSender(BackgroundSender):
    name = "checkpoints"

    def __init__(self, client: SiteClient, lease: int, out: Path, wishes: StopSignal, last: int = -1) -> None:
        """`last`: the step of the checkpoint that the server already has."""
        super().__init__(wishes)
        self._client = client
        self._lease = f"/leases/{lease}"
        self._out = out
        self._last = last

    def send_next(self) -> bool:
        """Send the oldest one that has not been sent."""
        for name in list_folder(self._out, CHECKPOINTS_FOLDER):
            if (step := parse_step(name)) is not None and step > self._last:
                folder = f"{CHECKPOINTS_FOLDER}/{name}"
                with (
                    suppress(OSError, UnsafeFileError),
                    ExitStack() as opened,
                ):  # taken away meanwhile: the next one will do
                    checkpoint = open_checkpoint(self._out, folder, step, opened)
                    if checkpoint is None:
                        continue
                    self._send(*checkpoint)
                    say(f"The checkpoint of step {step} is with the server.")
                self._last = step
                self._free()
                return True
        return False

    def _send(self, checkpoint: Checkpoint, files: Sequence[BufferedReader]) -> None:
        with ExitStack() as opened:
            about = self._about(opened)
            upload_missing_files(
                self._client, self._lease, dict(zip(checkpoint.files, files, strict=True)) | about, self.wishes
            )
        message = CheckpointUploaded(checkpoint=checkpoint, files=tuple(about))
        retry_until_reachable(lambda: self._client.tell(f"{self._lease}/checkpoints", message), self.wishes.over)

    def _about(self, opened: ExitStack) -> dict[FileRef, BufferedReader]:
        """Return `run.json`: what it takes to make something of the checkpoint before the run has ended."""
        with suppress(OSError, UnsafeFileError):
            file = opened.enter_context(open_file(self._out, ABOUT))
            return {build_file_ref(ABOUT, file): file}
        return {}

    def _free(self) -> None:
        """Remove what has been uploaded, but for the newest."""
        sent = [
            name
            for name in list_folder(self._out, CHECKPOINTS_FOLDER)
            if (step := parse_step(name)) is not None and step <= self._last
        ]
        for name in sent[:-KEPT]:
            with suppress(OSError):
                above = open_folder(self._out, CHECKPOINTS_FOLDER)
                shutil.rmtree(name, dir_fd=above)


def parse_step(name: str) -> int | None:
    match = NAME.fullmatch(name)
    return int(match[1]) if match else None


def open_checkpoint(
    out: Path, folder: str, step: int, opened: ExitStack
) -> tuple[Checkpoint, list[BufferedReader]] | None:
    """Return a whole checkpoint's description and its open files; None while it is not whole.

    The hashes are our own; `Unsafe` if they or the step are not those of its manifest.
    """
    told = read_json_object(out, f"{folder}/{MANIFEST}", MANIFEST_BYTES)
    if told is None:
        return None
    try:
        manifest = Checkpoint.model_validate(told)
    except ValidationError as error:
        raise UnsafeFileError("The checkpoint's manifest cannot be understood.") from error
    if manifest.step != step or len(manifest.files) > FILES:
        raise UnsafeFileError("The checkpoint's manifest is of another checkpoint.")
    refs, files = [], []
    for name in [*(file.path for file in manifest.files), MANIFEST]:
        file = opened.enter_context(open_file(out, f"{folder}/{name}"))
        refs.append(build_file_ref(name, file))
        files.append(file)
    if tuple(refs[:-1]) != manifest.files:
        raise UnsafeFileError("The checkpoint's files are not those of its manifest.")
    return Checkpoint(step=step, files=tuple(refs)), files


def upload_missing_files(
    client: SiteClient, lease: str, files: dict[FileRef, BufferedReader], wishes: StopSignal
) -> None:
    """Send those files that the server does not have yet. Safe to repeat."""
    have = BlobQuery(files=tuple(files))
    wanted = set(retry_until_reachable(lambda: client.post(f"{lease}/blobs", have, MissingBlobs), wishes.over).sha256)
    for file, content in files.items():
        if file.sha256 in wanted:
            wanted.discard(file.sha256)
            upload_file(client, f"{lease}/blobs/{file.sha256}", file.size, content, wishes.over)
