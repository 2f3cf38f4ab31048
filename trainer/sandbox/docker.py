"""The docker driver, for a machine with a container engine and without bubblewrap.

Runs the `docker` program (podman's works too). The image is `DAILYTRAIN_DOCKER_IMAGE`, by default `dailytrain-node`.
It contains Python and the training packages; only the mounts come from the machine. The engine limits memory and
processes, the meter limits disk and wall time.

Not tested against an engine: only the command line is tested. Not covered: a container survives a killed agent until
the next agent calls `remove_stale_containers`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from trainer.sandbox.gpu_devices import VISIBLE_GPUS_VARIABLE
from trainer.sandbox.process import SandboxProcess, find_command_error
from trainer.sandbox.spec import OutputStream, SandboxError, SandboxSpec

LABEL = "dailytrain.sandbox"
DRIVER = Path("/proc/driver/nvidia")
TIMEOUT_SECONDS = 30  # for one call of the docker program


class DockerDriver:
    name = "docker"

    def find_problem(self) -> str | None:
        if shutil.which("docker") is None:
            return "The program docker is not installed."
        problem = find_command_error(["docker", "run", "--rm", "--network", "none", get_image(), "true"])
        return None if problem is None else f"Docker does not work here: {problem}"

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        return DockerProcess(spec, stdout, stderr).start()

    def remove_stale_containers(self) -> None:
        """Remove the containers of killed agents."""
        result = run_docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}")
        if stale := result.stdout.split():
            run_docker("rm", "--force", *stale)


class DockerProcess(SandboxProcess):
    def __init__(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> None:
        super().__init__(spec, stdout, stderr, follow_processes=False)
        self._container = f"dailytrain-{uuid.uuid4().hex[:12]}"
        self._command = build_docker_command(spec, self._container)

    def _launch(self) -> subprocess.Popen[bytes]:
        return self._spawn(self._command)

    def terminate(self) -> None:
        if self.poll() is None:
            run_docker("kill", "--signal", "TERM", self._container)

    def _kill_all(self) -> None:
        run_docker("rm", "--force", self._container)
        assert self._popen is not None
        self._popen.kill()


def run_docker(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a docker command; a failure to start it counts as exit code 1."""
    command = ["docker", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def get_image() -> str:
    return os.environ.get("DAILYTRAIN_DOCKER_IMAGE", "dailytrain-node")


def build_docker_command(spec: SandboxSpec, container: str) -> list[str]:
    """Return the command line of `docker run`."""
    limits = spec.limits
    size = max(limits.memory_bytes // 8, 1 << 20)
    return [
        *["docker", "run", "--rm", "--init", "--name", container, "--label", LABEL, "--network", "none", "--read-only"],
        *["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private", "--hostname", "box"],
        *["--user", f"{os.getuid()}:{os.getgid()}"],  # the owner of the mounted files; without any capability
        *["--pids-limit", str(limits.processes), "--ulimit", "core=0"],
        *["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes), "--shm-size", str(size)],
        *["--tmpfs", f"/tmp:rw,nosuid,nodev,size={size}"],  # noqa: S108  (inside the container)
        *(word for name, value in spec.environment.items() for word in ("--env", f"{name}={value}")),
        *(word for mount in spec.mounts for word in ("--mount", build_mount_argument(mount.path, mount.writable))),
        *build_gpu_arguments(spec),
        *["--workdir", str(spec.folder), "--entrypoint", "", get_image()],
        *["python" if spec.command[0] == sys.executable else spec.command[0], *spec.command[1:]],
    ]


def build_gpu_arguments(spec: SandboxSpec) -> list[str]:
    """Return the arguments for the GPUs in the spec's CUDA_VISIBLE_DEVICES; for all GPUs if it lists no UUIDs."""
    if not DRIVER.exists():
        return []
    visible = spec.environment.get(VISIBLE_GPUS_VARIABLE, os.environ.get(VISIBLE_GPUS_VARIABLE))
    if visible is None or not all(word.startswith("GPU-") for word in visible.split(",") if word):
        return ["--gpus", "all"]
    return ["--gpus", f'"device={visible}"'] if visible else []


def build_mount_argument(path: Path, writable: bool) -> str:
    """Return the value of `--mount`. Docker separates its fields by commas, so a path must have none."""
    if "," in str(path):
        raise SandboxError(f"{path} has a comma in its name: docker cannot mount it.")
    return f"type=bind,source={path},target={path}{'' if writable else ',readonly'}"
