"""Consistency of compose.yaml, Dockerfile, settings and .env.example, checked without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from tests.support import scene
from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes

AWS_VARIABLES = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "AWS_DEFAULT_REGION"}
"""Read by boto3. The file has the key and the secret."""
OF_THE_IMAGE = {
    *("DAILYTRAIN_HOME", "STATIC_ROOT", "WHEELS", "DOCS_FOLDER", "REPHRASE_FILES"),  # folders of the image
    "DEBUG",  # never in production
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())
    return services


def test_compose_service_builds_a_target_or_pins_an_image(compose: dict[str, Any]) -> None:
    targets = re.findall(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    for name, service in compose["services"].items():
        if "build" in service:
            assert service["build"]["target"] in targets, name
        else:
            assert re.fullmatch(r"[a-z/-]+:v?\d[\w.-]+@sha256:[0-9a-f]{64}", service["image"]), name


def test_compose_variables_are_listed_in_the_example(compose: dict[str, Any]) -> None:
    wanted = set(re.findall(r"\$\{(\w+)", (REPOSITORY / "compose.yaml").read_text()))
    example = (REPOSITORY / ".env.example").read_text()
    assert wanted == set(re.findall(r"^(\w+)=", example, flags=re.MULTILINE))
    environment = compose["services"]["worker"]["environment"]
    optional = {name for name, value in environment.items() if value is None}
    assert optional == set(re.findall(r"^# ([A-Z]\w+)=", example, flags=re.MULTILINE))


def test_each_setting_reaches_the_web_service(compose: dict[str, Any]) -> None:
    settings = (REPOSITORY / "dailytrain" / "settings.py").read_text()
    known = set(re.findall(r"\bread_[a-z]+\(\s*\"(\w+)\"", settings))
    environment = compose["services"]["web"]["environment"]
    names = {name.removesuffix("_FILE") for name in environment.keys() - AWS_VARIABLES - {"DAILYTRAIN_CACHE"}}
    assert names == known - OF_THE_IMAGE


def test_image_of_the_site_keeps_all_data_below_its_volume(compose: dict[str, Any]) -> None:
    stages = re.split(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.findall(r"^ENV (.+)$", dict(zip(stages[1::2], stages[2::2], strict=True))["site"], flags=re.MULTILINE)
    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(lines)))
    assert "site:/data" in compose["services"]["web"]["volumes"]
    for name in ("DAILYTRAIN_HOME", "DAILYTRAIN_CACHE", "HF_HOME"):
        assert Path(variables[name]).is_relative_to("/data"), name


ROOT_IN_CONTAINER = {"tls"}  # Caddy's image; it keeps one capability
WRITABLE = {"node", "volunteer", "writer"}  # they write models, checkpoints and workspaces


def test_services_have_no_capability_and_those_of_the_site_are_read_only(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name in WRITABLE:
            continue
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert name in ROOT_IN_CONTAINER or "build" in service or service["user"] not in ("0", "root"), name
    node = compose["services"]["node"]
    assert ("privileged" in node, node["cap_drop"]) == (False, ["ALL"])
    assert "no-new-privileges" in node["security_opt"]
    assert not any("docker.sock" in volume for volume in node["volumes"])


def test_each_secret_of_compose_can_be_a_file(compose: dict[str, Any]) -> None:
    environment = compose["services"]["web"]["environment"]
    names = environment.keys() - AWS_VARIABLES
    secrets = {name for name in names if re.search(r"SECRET|PASSWORD|TOKEN|PRIVATE_KEY|MAIL_URL", name)}
    assert {name for name in secrets if not name.endswith("_FILE")} == {
        name.removesuffix("_FILE") for name in secrets if name.endswith("_FILE")
    }
    assert "./secrets:/run/secrets:ro" in compose["services"]["web"]["volumes"]


@pytest.mark.slow
def test_migrate_service_ends_with_what_the_new_site_lacks(compose: dict[str, Any], tmp_path: Path) -> None:
    """Run the command of the service without a container."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = build_clean_environment(PATH=path, DAILYTRAIN_HOME=str(tmp_path))
    command = compose["services"]["migrate"]["command"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "CommandError: The site lacks a season (manage.py create_season NAME --corpus fineweb-edu:sample-100BT "
        "--tokens 12B), a track (manage.py create_track night-h100), an admin (manage.py createsuperuser). "
        "Then run manage.py check_night."
    )


@pytest.mark.django_db
def test_setup_check_of_a_site_with_season_track_and_admin_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    track = scene.create_track()
    User.objects.create_superuser("ada", password="a password of this test only")
    call_command("check_setup")
    assert (
        capsys.readouterr().out == f"The site has {track.season}, tracks: 1, admins: 1. Next: manage.py check_night.\n"
    )
    track.season.dataset_hash = ""
    track.season.save()
    with pytest.raises(CommandError, match=r"lacks a season \(manage.py create_season NAME .*\)\. Then"):
        call_command("check_setup")
