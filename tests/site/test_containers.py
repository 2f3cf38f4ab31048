"""Consistency of compose.yaml, Dockerfile, settings and .env.example, checked without a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from tests.support import scene
from tests.support.clean_environment import run_python
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


FILLED_IN = {
    "SECRET_KEY": "a-secret-key-of-this-test-that-is-long-enough-for-djangos-own-checks",
    "POSTGRES_PASSWORD": "unused-here",
    "MAIN_REPOSITORY": "https://github.com/trains/daily",
    "SITE_URL": "https://train.example.org",
    "ALLOWED_HOSTS": "train.example.org",
    "GITHUB_REPOSITORY": "trains/daily",
    "GITHUB_WEBHOOK_SECRET": "between us",
    "GITHUB_CLIENT_ID": "Iv1.train",
    "GITHUB_CLIENT_SECRET": "a-secret-of-this-test",
}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a production site, with a SQLite file in place of PostgreSQL."""
    example = (REPOSITORY / ".env.example").read_text()
    variables = dict(re.findall(r"^(\w+)=(.*)$", example, flags=re.MULTILINE))
    assert set(FILLED_IN) <= set(variables)
    return {**variables, **FILLED_IN, "DEBUG": "False", "DATABASE_URL": f"sqlite:///{tmp_path}/throwaway.sqlite3"}


def manage(home: Path, variables: dict[str, str], *arguments: str) -> str:
    """Run `manage.py`; return what it writes."""
    done = run_python(home, "manage.py", *arguments, **variables)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_production_settings_pass_the_check_and_pool_connections(variables: dict[str, str], tmp_path: Path) -> None:
    address = "postgres://train@db.example.org/train?sslmode=verify-full&sslrootcert=/etc/ca.pem"
    variables |= {"DATABASE_URL": address, "DATABASE_POOL": "4"}
    script = """
from django.conf import settings
from django.core.management import call_command
call_command("check", deploy=True, fail_level="WARNING")
options = settings.DATABASES["default"]["OPTIONS"]
print(options["sslmode"], options["sslrootcert"], options["pool"]["max_size"])
"""
    printed = manage(tmp_path, variables, "shell", "--no-imports", "--command", script)
    assert "no issues" in printed
    assert "verify-full /etc/ca.pem 4" in printed


def test_wrong_number_stops_the_start_with_the_name_of_its_variable(variables: dict[str, str], tmp_path: Path) -> None:
    done = run_python(tmp_path, "manage.py", "check", code=1, **{**variables, "WEB_THREADS": "four"})
    assert "WEB_THREADS is 'four': it must be a whole number." in done.stderr


@pytest.mark.slow
def test_site_with_tls_redirects_visitors_but_not_nodes(variables: dict[str, str], tmp_path: Path) -> None:
    script = """
from django.test import Client
client = Client(headers={"host": "train.example.org"})
for path in ("/queue/", "/api/v1/", "/api/node/v1/poll", "/healthz"):
    print(path, client.get(path).status_code)
print(client.get("/healthz", secure=True)["Strict-Transport-Security"])
"""
    assert "Applying mfa.0001_initial... OK" in manage(tmp_path, variables, "migrate")
    lines = manage(tmp_path, variables, "shell", "--no-imports", "--command", script).splitlines()
    assert [line for line in lines if line.startswith(("/", "max-age"))] == [
        "/queue/ 301", "/api/v1/ 301", "/api/node/v1/poll 405", "/healthz 200", "max-age=31536000",
    ]  # fmt: skip
