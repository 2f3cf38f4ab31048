"""Management commands with the settings of a production site: `.env.example`, filled in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
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
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a production site, with a SQLite file in place of PostgreSQL."""
    example = (ROOT / ".env.example").read_text()
    variables = dict(re.findall(r"^(\w+)=(.*)$", example, flags=re.MULTILINE))
    assert set(FILLED_IN) <= set(variables)
    return {
        **{name: os.environ[name] for name in KEPT if name in os.environ},
        **variables,
        **FILLED_IN,
        "DEBUG": "False",
        "DAILYTRAIN_HOME": str(tmp_path),
        "DATABASE_URL": f"sqlite:///{tmp_path / 'throwaway.sqlite3'}",
    }


def manage(environment: dict[str, str], *arguments: str) -> str:
    """Run `manage.py`; return what it writes. Fail on an exit status other than 0."""
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_check_with_production_settings_passes(environment: dict[str, str]) -> None:
    assert "no issues" in manage(environment, "check", "--deploy", "--fail-level", "WARNING")


def test_wrong_number_stops_the_start_with_the_name_of_its_variable(environment: dict[str, str]) -> None:
    environment |= {"WEB_THREADS": "four"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "WEB_THREADS is 'four': it must be a whole number." in done.stderr


def test_pool_of_connections_keeps_the_options_of_the_database_url(environment: dict[str, str]) -> None:
    address = "postgres://train@db.example.org/train?sslmode=verify-full&sslrootcert=/etc/ca.pem"
    environment |= {"DATABASE_URL": address, "DATABASE_POOL": "4"}
    script = """
from django.conf import settings
options = settings.DATABASES["default"]["OPTIONS"]
print(options["sslmode"], options["sslrootcert"], options["pool"]["max_size"])
"""
    assert "verify-full /etc/ca.pem 4" in manage(environment, "shell", "--no-imports", "--command", script)


@pytest.mark.slow
def test_site_with_tls_redirects_visitors_but_not_nodes(environment: dict[str, str]) -> None:
    script = """
from django.test import Client
client = Client(headers={"host": "train.example.org"})
for path in ("/queue/", "/api/v1/", "/api/node/v1/poll", "/healthz"):
    print(path, client.get(path).status_code)
print(client.get("/healthz", secure=True)["Strict-Transport-Security"])
"""
    manage(environment, "migrate")
    lines = manage(environment, "shell", "--no-imports", "--command", script).splitlines()
    assert [line for line in lines if line.startswith(("/", "max-age"))] == [
        "/queue/ 301", "/api/v1/ 301", "/api/node/v1/poll 405", "/healthz 200", "max-age=31536000",
    ]  # fmt: skip


@pytest.mark.slow
def test_migrate_with_production_settings_creates_tables(environment: dict[str, str], tmp_path: Path) -> None:
    assert "Applying mfa.0001_initial... OK" in manage(environment, "migrate")
    assert (tmp_path / "throwaway.sqlite3").stat().st_size > 0
    assert "[ ]" not in manage(environment, "showmigrations")
