"""The docker driver: for an agent on the bare machine of somebody who has an engine and no bubblewrap.

Uses the `docker` program (podman's works too), no package. The image is `DAILYTRAIN_DOCKER_IMAGE`, by default
`dailytrain-node`: it carries Python and the training packages, so that only the mounts come from the machine.
The engine limits memory and processes, the meter disk and wall time.

Not run against an engine yet: the command line is tested, the engine's side of it is not. Not covered: open files
cannot be passed in, so the scorer cannot use it; a container outlives an agent that is killed, until the next agent
on this machine removes what carries the label (`sweep`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from trainer.sandbox.box import Box, SandboxError, Stream
from trainer.sandbox.graphics import VISIBLE
from trainer.sandbox.meter import Meter
from trainer.sandbox.process import Process, first_line

LABEL = "dailytrain.box"
DRIVER = Path("/proc/driver/nvidia")
QUICK = 30
"""Seconds that an order to the engine may take."""


class Docker:
    name = "docker"

    def why_not(self) -> str | None:
        if shutil.which("docker") is None:
            return "The program docker is not installed."
        complaint = first_line(subprocess.run, ["docker", "run", "--rm", "--network", "none", image(), "true"])
        return None if complaint is None else f"Docker does not work here: {complaint}"

    def start(self, box: Box, stdout: Stream, stderr: Stream) -> Process:
        if box.pass_fds:
            raise SandboxError("The docker sandbox cannot take open files: use bubblewrap for scoring.")
        return DockerProcess(box, stdout, stderr).begin()

    def sweep(self) -> None:
        """Remove the containers that an agent left behind which was killed."""
        listed = docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}")
        if left := listed.stdout.split():
            docker("rm", "--force", *left)


class DockerProcess(Process):
    def __init__(self, box: Box, stdout: Stream, stderr: Stream) -> None:
        super().__init__(Meter(box, engine=True))
        self._container = f"dailytrain-{uuid.uuid4().hex[:12]}"
        self._arguments = arguments(box, self._container)
        self._streams = stdout, stderr

    def _launch(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=self._streams[0],
                stderr=self._streams[1],
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"Docker could not be started: {error}.") from error

    def stop(self) -> None:
        if self.poll() is None:
            docker("kill", "--signal", "TERM", self._container)

    def _destroy(self) -> None:
        docker("rm", "--force", self._container)
        assert self._popen is not None
        self._popen.kill()


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUICK, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def image() -> str:
    return os.environ.get("DAILYTRAIN_DOCKER_IMAGE", "dailytrain-node")


def arguments(box: Box, container: str) -> list[str]:
    """Return the whole command line."""
    limits = box.limits
    room = max(limits.memory_bytes // 8, 1 << 20)
    return [
        *["docker", "run", "--rm", "--init", "--name", container, "--label", LABEL, "--network", "none", "--read-only"],
        *["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private", "--hostname", "box"],
        *["--user", f"{os.getuid()}:{os.getgid()}"],  # whom the mounted files belong to; without any capability
        *["--pids-limit", str(limits.processes), "--ulimit", "core=0"],
        *["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes), "--shm-size", str(room)],
        *["--tmpfs", f"/tmp:rw,nosuid,nodev,size={room}"],  # noqa: S108  (the container's own)
        *(word for name, value in box.environment.items() for word in ("--env", f"{name}={value}")),
        *(word for mount in box.mounts for word in ("--mount", bind(mount.path, mount.writable))),
        *gpus(box),
        *["--workdir", str(box.folder), "--entrypoint", "", image()],
        *["python" if box.command[0] == sys.executable else box.command[0], *box.command[1:]],
    ]


def gpus(box: Box) -> list[str]:
    """Return docker's words for the GPUs that the box's environment names; for all where it names none."""
    if not DRIVER.exists():
        return []
    visible = box.environment.get(VISIBLE, os.environ.get(VISIBLE))
    if visible is None or not all(word.startswith("GPU-") for word in visible.split(",") if word):
        return ["--gpus", "all"]
    return ["--gpus", f'"device={visible}"'] if visible else []


def bind(path: Path, writable: bool) -> str:
    """Return docker's words for showing a path inside; a comma would end the path."""
    if "," in str(path):
        raise SandboxError(f"{path} has a comma in its name: docker cannot mount it.")
    return f"type=bind,source={path},target={path}{'' if writable else ',readonly'}"
