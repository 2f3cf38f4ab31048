"""`dailytrain submit`: the text of a pull request that the site can read, and run requests at a real site."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard.integrations.github.front_matter import parse_front_matter
from leaderboard.models import ApiToken, Entry, Run, Track
from tests.leaderboard.conftest import GIT, Repository
from tests.support.paths import REPOSITORY
from trainer.cli import site_api, submit
from trainer.cli.main import main as dailytrain
from trainer.errors import UserError

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
    assert dailytrain(["submit", *FLAGS, *flags, "--based-on", "12"]) == 0
    title, _, body = capsys.readouterr().out.partition("\n\n")
    parsed = parse_front_matter(body, {"small": "The small track"})
    assert (parsed.problems, parsed.track, parsed.architecture) == ((), "small", "smear")
    assert (parsed.hypothesis, parsed.expected_effect, parsed.contact) == (HYPOTHESIS, "3 % less compute", "@ada")
    assert (parsed.config, parsed.based_on) == ({"model": {"depth": 3}}, 12)
    assert title == checkout.git("log", "-1", "--format=%s")
    assert dailytrain(["submit", *FLAGS]) == 0
    assert "---\ntrack: \n" in capsys.readouterr().out, "the required field is there to fill in"


def test_submit_with_push_commits_models_to_a_branch_of_their_own(
    main_repository: Repository,
    checkout: Repository,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)
    main = main_repository.git("rev-parse", "main")
    checkout.write({"trainer/models/idea.py": "x = 1\n", "notes.txt": "Not an entry's.\n"})
    assert dailytrain(["submit", *FLAGS, "--push"]) == 2
    assert "an entry needs a branch of its own: `git switch -c NAME` first" in capsys.readouterr().err
    checkout.git("switch", "--quiet", "--create", "idea")
    checkout.git("add", "notes.txt")
    assert dailytrain(["submit", *FLAGS, "--push"]) == 2
    assert "1 files have changes that are not committed, such as notes.txt" in capsys.readouterr().err
    checkout.git("restore", "--staged", "notes.txt")
    server = ["--push", "--server", "http://127.0.0.1:1"]
    assert dailytrain(["submit", *FLAGS, *server, "--architecture", "idea"]) == 2
    assert dailytrain(["submit", *FLAGS, *server, "--token", "secret"]) == 2
    assert "needs a token" in (errors := capsys.readouterr().err)
    assert "needs --architecture" in errors
    assert "idea" not in main_repository.git("branch"), "what is refused is not pushed"
    for _ in range(2):  # the second time there is nothing to commit
        assert dailytrain(["submit", *FLAGS, "--push", "--title", "An idea"]) == 0
    assert main_repository.git("log", "--format=%s", f"{main}..idea") == "An idea"
    assert main_repository.git("diff", "--name-only", main, "idea") == "trainer/models/idea.py"
    assert main_repository.git("rev-parse", "main") == main


def test_tokens_in_remote_addresses_are_not_told(checkout: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("github.com", "127.0.0.1:1"):
        checkout.git("remote", "set-url", "origin", f"https://ada:secret@{host}/ada/train")
        assert submit.find_repository() == f"https://{host}/ada/train"
        assert submit.find_repository(f"https://secret@{host}/ada/train") == f"https://{host}/ada/train"
    checkout.git("switch", "--quiet", "--create", "idea")
    assert dailytrain(["submit", *FLAGS, "--push"]) == 2
    with pytest.raises(UserError, match=r"git fetch https://127\.0\.0\.1:1/ada/train: ") as raised:
        submit.run_git("fetch", "https://ada:secret@127.0.0.1:1/ada/train")
    assert "secret" not in capsys.readouterr().err + str(raised.value)


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


def test_documented_read_examples_return_200(run: Run, client: Client) -> None:
    text = (REPOSITORY / "docs/how-to/api-examples.md").read_text()
    addresses = re.findall(r"\$SITE(/[^`\s\"]+)", text)
    assert len(addresses) == 9
    for address in addresses[1:]:  # the first one creates an entry
        path = re.sub(r"/9\b", f"/{run.pk}", address).replace("=9,12", f"={run.pk}")
        path = path.replace("entries/7", f"entries/{run.entry_id}").replace("small", run.track.slug)
        assert client.get(path).status_code == (401 if path == "/api/v1/me" else 200), path
    assert {"state", "cause", "reason"} <= client.get(f"/api/v1/runs/{run.pk}").json().keys()
