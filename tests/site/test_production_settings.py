"""Management commands with the settings of a production site: `.env.example`, filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.clean_environment import run_python
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes

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
