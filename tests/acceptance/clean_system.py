"""A clean Debian or Ubuntu in a folder: its own packages and users, the network of this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

USER = "ada"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ENTER = """
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
for path in $SHOWN; do
    if [ -d "$path" ]; then mkdir -p "$ROOT$path"; else mkdir -p "$ROOT${path%/*}"; touch "$ROOT$path"; fi
    mount --bind "$path" "$ROOT$path"
    mount -o remount,bind,ro "$ROOT$path"
done
cd "$ROOT"
mkdir -p .outside
pivot_root . .outside
umount -l .outside
exec setpriv --reuid "$USER" --regid "$USER" --init-groups -- "$@"
"""
"""Not chroot: there the kernel forbids the user namespaces of the sandbox."""


class CleanSystem:
    def __init__(self, root: Path, environment: Mapping[str, str], shown: list[Path]) -> None:
        """`environment`: variables of all commands; `shown`: files and folders of this machine to show read-only."""
        self.root, self.environment, self.shown = root, environment, [Path("/etc/resolv.conf"), *shown]

    def start(self, command: list[str], output: IO[bytes], user: str = USER) -> subprocess.Popen[bytes]:
        """Start a command as the first process of a process namespace; `stop_system` ends it."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
        variables = {"ROOT": str(self.root), "USER": user, "SHOWN": " ".join(map(str, self.shown))}
        variables["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        home = "/root" if user == "root" else f"/home/{user}"
        inside = ["env", "-C", home, f"HOME={home}", "TERM=dumb", "LANG=C.UTF-8"]
        inside += [f"{name}={value}" for name, value in self.environment.items()]
        command = [*enter, "sh", "-ec", ENTER, "sh", *inside, *command]
        return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=variables)

    def run(self, command: list[str], log: Path, user: str = USER) -> None:
        with log.open("ab") as output:
            code = self.start(command, output, user).wait()
        assert code == 0, f"{shlex.join(command)}\n{log.read_text(errors='replace')[-4000:]}"


def stop_system(started: subprocess.Popen[bytes]) -> None:
    """Kill the first process of the namespace, and with it all others."""
    # `unshare --kill-child` would not do: setpriv's change of user clears the parent-death signal.
    for process in psutil.Process(started.pid).children():
        process.kill()
    started.wait()


def find_problem() -> str:
    """Return why no clean system can be made here; "" if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "making a clean system needs root on Linux"
    missing = [name for name in ("debootstrap", "unshare", "pivot_root", "setpriv") if shutil.which(name) is None]
    return f"not installed here: {', '.join(missing)}" if missing else ""


def find_debian_mirror() -> str:
    """Return the archive from which apt installs this machine's Debian; "" on another system."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        text = path.read_text() if path.exists() else ""
        if match := re.search(r"^(?:URIs:|deb)\s+(?:\[[^]]*\]\s+)?(http\S+debian/?)", text, re.MULTILINE):
            return match[1]
    return ""


def create_clean_system(
    root: Path, suite: str, mirror: str, log: Path, environment: Mapping[str, str], shown: list[Path]
) -> CleanSystem:
    """Install the system's smallest set of packages and add a user."""
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates"]
    command += ["--components=main,universe"] if "ubuntu" in mirror else []
    command += [suite, str(root), mirror]
    with log.open("ab") as output:
        code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    assert code == 0, log.read_text(errors="replace")[-4000:]
    system = CleanSystem(root, environment, shown)
    system.run(["useradd", "--create-home", "--shell", "/bin/bash", USER], log, "root")
    return system


def read_pip_configuration() -> tuple[dict[str, str], list[Path]]:
    """Return this machine's configuration of pip as variables, and the files and folders that it names."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = re.findall(r"^(?:global|user|site|install|:env:)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE)
    variables = {f"PIP_{name.replace('-', '_').upper()}": value for name, value in found}
    words = " ".join(variables.values()).split()
    paths = {Path(word.removeprefix("file://")) for word in words if word.startswith(("/", "file:///"))}
    paths = {path.parent if path.name == "simple" else path for path in paths}  # an index lies beside its files
    return variables, sorted(path for path in {*paths, CERTIFICATES} if path.exists())
