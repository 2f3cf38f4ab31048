"""`dailytrain submit`: the text of a pull request that the site can read, and run requests at a real site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from leaderboard.integrations.github.front_matter import parse_front_matter
from leaderboard.models import ApiToken, Entry, Run, Track
from tests.leaderboard.conftest import Repository
from trainer.cli import site_api
from trainer.cli.main import main as dailytrain

pytestmark = pytest.mark.processes

HYPOTHESIS = "Keys that see one token back: fewer heads."
FLAGS = ("--hypothesis", HYPOTHESIS, "--expected-effect", "3 % less compute", "--contact", "@ada")


@pytest.fixture
def checkout(main_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    fork = main_repository.fork(tmp_path / "fork")
    monkeypatch.chdir(fork.path)
    monkeypatch.delenv(site_api.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(site_api, "POLL_SECONDS", 0.02)
    return fork


def test_submit_prints_description_that_site_can_parse(
    checkout: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout.path.parent / "config.json").write_text(json.dumps({"model": {"depth": 3}}))
    flags = ("--track", "small", "--architecture", "smear", "--config", str(checkout.path.parent / "config.json"))
    assert dailytrain(["submit", *FLAGS, *flags]) == 0
    title, _, body = capsys.readouterr().out.partition("\n\n")
    parsed = parse_front_matter(body, {"small": "The small track"})
    assert (parsed.problems, parsed.track, parsed.architecture) == ((), "small", "smear")
    assert (parsed.hypothesis, parsed.expected_effect, parsed.contact) == (HYPOTHESIS, "3 % less compute", "@ada")
    assert parsed.config == {"model": {"depth": 3}}
    assert title == checkout.git("log", "-1", "--format=%s")
    assert dailytrain(["submit", *FLAGS]) == 0
    assert "---\ntrack: \n" in capsys.readouterr().out, "the required field is there to fill in"


@pytest.mark.usefixtures("instant_outbox")
@pytest.mark.django_db(transaction=True)
def test_submit_to_server_requests_run_and_explains_errors(
    main_repository: Repository,
    checkout: Repository,
    track: Track,
    live_server: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = ApiToken(name="Carol", owner=User.objects.create_user("carol"))
    secret = token.draw_secret()
    token.save()
    address = ["--server", live_server.url, "--repository", str(main_repository.path)]
    flags = ["submit", *FLAGS, *address, "--track", track.slug]
    assert dailytrain([*flags, "--architecture", "smear", "--token", secret, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    run, entry = Run.objects.get(), Entry.objects.get()
    assert (reply["run"], reply["entry"], reply["state"]) == (run.pk, entry.pk, "waiting")
    assert (entry.hypothesis, entry.author, entry.sha) == (HYPOTHESIS, "carol", checkout.git("rev-parse", "HEAD"))
    # Settings of one commit are entries, each requested once.
    for final in (0.05, 0.1, 0.05):
        (checkout.path.parent / "config.json").write_text(json.dumps({"recipe": {"schedule": {"final": final}}}))
        config = ("--config", str(checkout.path.parent / "config.json"))
        assert dailytrain([*flags, *config, "--architecture", "smear", "--token", secret]) == 0
    finals = Entry.objects.order_by("pk").values_list("config__recipe__schedule__final", flat=True)
    assert list(finals) == [None, 0.05, 0.1]
    assert dailytrain([*flags, "--architecture", "nothing", "--token", secret]) == 2
    assert "no architecture 'nothing'" in capsys.readouterr().err
    assert dailytrain([*flags, "--architecture", "smear", "--token", "wrong"]) == 2
    assert "the site refuses it (401)" in capsys.readouterr().err
