"""The Ansible play for one server, applied to a folder, and what it wrote: units, proxies, settings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tests.support.clean_environment import run_python
from tests.support.paths import REPOSITORY

PLAYBOOK = REPOSITORY / "deploy" / "playbook.yml"
UNITS = ("dailytrain-migrate", "dailytrain-web", "dailytrain-worker", "dailytrain-long-worker", "dailytrain-beat")
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run_playbook(folder: Path, *flags: str) -> str:
    """Apply the play to this machine with all paths below `folder`, without packages, users and services."""
    variables = {
        "root": str(folder / "root"),
        "manage_system": False,
        "site_domain": "train.example.org",
        "repository": str(folder / "code"),
        "version": "HEAD",
        "settings": {"LOG_LEVEL": "INFO"},
        "ansible_python_interpreter": sys.executable,  # Ansible's search can find one that does not start
    }
    command = ["ansible-playbook", "-i", "localhost,", "-c", "local", str(PLAYBOOK), *flags]
    command += ["-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root folder of a server after the play has run twice. The second run changes nothing."""
    if shutil.which("ansible-playbook") is None:
        pytest.skip("Ansible is not installed (apt install ansible-core)")
    folder = tmp_path_factory.mktemp("server")
    code = folder / "code"
    code.mkdir()
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(code)], check=True)
    subprocess.run(["git", "-C", str(code), *identity, "commit", "--quiet", "--allow-empty", "-m", "First"], check=True)
    assert re.search(r"ok=9 +changed=8", run_playbook(folder))
    assert re.search(r"ok=9 +changed=0", run_playbook(folder))
    return folder / "root"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_are_valid(server: Path) -> None:
    python = server / "opt/dailytrain/.venv/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for name in (
        "network-online.target",
        "multi-user.target",
        "sockets.target",
        "sysinit.target",
        "basic.target",
        "shutdown.target",
    ):
        (server / "etc/systemd/system" / name).write_text("[Unit]\nDescription=x\n")
    units = [
        f"/etc/systemd/system/{name}" for name in (*(f"{name}.service" for name in UNITS), "dailytrain-web.socket")
    ]
    command = ["systemd-analyze", "verify", f"--root={server}", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_configuration_is_valid_and_local(server: Path, tmp_path: Path) -> None:
    site = (server / "etc/nginx/conf.d/dailytrain.conf").read_text()
    assert "${" not in site
    assert "listen 127.0.0.1:8000;" in site
    assert "server 127.0.0.1:8001;" in site
    assert "ListenStream=127.0.0.1:8001" in (server / "etc/systemd/system/dailytrain-web.socket").read_text()
    config = (
        f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{site.replace('/tmp/pages', str(tmp_path))}}}\n"
    )
    (tmp_path / "nginx.conf").write_text(config)
    command = [str(NGINX), "-t", "-p", str(tmp_path), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_of_the_server_pass_the_deployment_check(server: Path, tmp_path: Path) -> None:
    lines = (server / "etc/dailytrain/site.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert variables["LOG_LEVEL"] == "INFO"
    for name in ("DAILYTRAIN_HOME", "STATIC_ROOT"):
        variables[name] = str(tmp_path / Path(variables[name]).name)
    flags = ("--deploy", "--fail-level", "WARNING")
    run_python(tmp_path, "manage.py", "check", *flags, **variables, GITHUB_CLIENT_ID="x", GITHUB_CLIENT_SECRET="x")


@pytest.mark.parametrize("name", ["worker", "long-worker", "beat"])
def test_unit_starts_the_command_that_compose_starts(name: str) -> None:
    services = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    unit = (REPOSITORY / f"deploy/systemd/dailytrain-{name}.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+ (.+)$", unit, flags=re.MULTILINE)
    assert command.split() == services[name]["command"][1:]


def test_locked_packages_accept_the_python_of_debian_12() -> None:
    lines = (REPOSITORY / "requirements.lock").read_text().splitlines()
    for line in lines:
        name, _, version = line.partition("==")
        if not version:
            continue
        with contextlib.suppress(PackageNotFoundError):
            package = distribution(name)
            if package.version == version:
                assert "3.11.2" in SpecifierSet(package.metadata.get("Requires-Python", "")), line
