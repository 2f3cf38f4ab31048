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

from scheduler.campaigns.models import Campaign
from tests.support import scene
from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes

AWS_VARIABLES = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "AWS_DEFAULT_REGION"}
"""Read by boto3. The file has the key and the secret."""
OF_THE_IMAGE = {
    *("DAILYTRAIN_HOME", "STATIC_ROOT", "WHEELS", "DOCS_FOLDER", "REPHRASE_FILES"),  # folders of the image
    "DEBUG",  # never in production
    "OTEL_EXPORTER_OTLP_ENDPOINT",  # the image has no OpenTelemetry, without which the setting stops each process
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


def test_release_publishes_an_image_of_each_final_target() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    targets = set(re.findall(r"^FROM base AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert set(workflow["jobs"]["images"]["strategy"]["matrix"]["target"]) == targets


def test_node_image_installs_a_c_compiler() -> None:
    stages = re.split(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    node = dict(zip(stages[1::2], stages[2::2], strict=True))["node"]
    installed = " ".join(re.findall(r"apt-get install([^&]*)", node)).split()
    assert {"gcc", "libc6-dev"} <= set(installed)


def test_nothing_that_installs_flash_attention_compiles_it() -> None:
    """PyPI has its source alone, and a wheel fits one Python, torch and CUDA."""
    folders = [REPOSITORY / name for name in ("docs", "deploy", "docker", "scheduler", "templates", "trainer")]
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py", ".html", ".yml")]
    for path in (REPOSITORY / "Dockerfile", *paths):
        for line in path.read_text().splitlines():
            if re.search(r"pip[\w ]* install.*flash.attn", line):
                assert "--only-binary=:all:" in line, f"{path}: {line}"
    assert "flash-attn" in (REPOSITORY / "Dockerfile").read_text()
    assert "flash-attn" not in (REPOSITORY / "pyproject.toml").read_text()


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


def test_volumes_and_dependencies_of_compose_exist(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (REPOSITORY / source).exists(), name
        for other in service.get("depends_on", {}):
            assert other in compose["services"], name


ROOT_IN_CONTAINER = {"tls"}  # Caddy's image; it keeps one capability
WRITABLE = {"node", "volunteer", "writer"}  # they write models, checkpoints and workspaces


def test_services_of_the_site_are_read_only_without_capabilities(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name in WRITABLE:
            continue
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert name in ROOT_IN_CONTAINER or "build" in service or service["user"] not in ("0", "root"), name


def test_services_but_the_migration_have_a_health_check(compose: dict[str, Any]) -> None:
    web = (REPOSITORY / "Dockerfile").read_text().partition("AS node")[0]
    assert "HEALTHCHECK" in web
    for name in set(compose["services"]) - {"migrate", "web", "node", "volunteer"}:
        assert compose["services"][name]["healthcheck"]["test"][0] == "CMD", name


def test_each_secret_of_compose_can_be_a_file(compose: dict[str, Any]) -> None:
    environment = compose["services"]["web"]["environment"]
    names = environment.keys() - AWS_VARIABLES
    secrets = {name for name in names if re.search(r"SECRET|PASSWORD|TOKEN|PRIVATE_KEY|MAIL_URL", name)}
    assert {name for name in secrets if not name.endswith("_FILE")} == {
        name.removesuffix("_FILE") for name in secrets if name.endswith("_FILE")
    }
    assert "./secrets:/run/secrets:ro" in compose["services"]["web"]["volumes"]


def test_node_service_has_no_privilege_and_no_engine_socket(compose: dict[str, Any]) -> None:
    node = compose["services"]["node"]
    assert "privileged" not in node
    assert node["cap_drop"] == ["ALL"]
    assert "no-new-privileges" in node["security_opt"]
    assert not any("docker.sock" in volume for volume in node["volumes"])


def test_rephrase_profile_runs_a_campaign(compose: dict[str, Any]) -> None:
    from trainer.cli.rephrase_join import build_parser

    profile = {name: one for name, one in compose["services"].items() if "rephrase" in one.get("profiles", [])}
    assert set(profile) == {"writer", "volunteer"}
    words = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in profile["volunteer"]["command"]]
    options = build_parser().parse_args(words)
    model = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", profile["writer"]["command"][1])
    assert (options.endpoint, options.model) == ("http://writer:8000/v1", model)
    assert model == Campaign._meta.get_field("model").default
    assert profile["volunteer"]["cap_drop"] == ["ALL"]
    assert not any("docker.sock" in volume for one in profile.values() for volume in one["volumes"])


@pytest.mark.slow
def test_migrate_service_ends_with_what_the_new_site_lacks(compose: dict[str, Any], tmp_path: Path) -> None:
    """Run the command of the service without a container."""
    shell, *arguments = compose["services"]["migrate"]["command"]
    environment = build_clean_environment(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", DAILYTRAIN_HOME=str(tmp_path)
    )
    done = subprocess.run([shell, *arguments], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
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


def test_nightly_workflow_fuzzes_and_audits_on_the_database_of_compose(compose: dict[str, Any]) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "nightly.yml").read_text())
    commands = {step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step}
    assert {"make fuzz", "make audit", ".ci/run check-nightly"} <= commands
    fuzz = workflow["jobs"]["fuzz"]
    assert fuzz["env"]["DATABASE_URL"].startswith("postgres://")
    assert fuzz["services"]["postgres"]["image"] == compose["services"]["postgres"]["image"]
