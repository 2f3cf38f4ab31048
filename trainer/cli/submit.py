"""`dailytrain submit`: propose the current commit, as the text of a pull request or through a site's API.

Without `--server` it prints title and description of a pull request and, for a repository on GitHub, the address of
its form with both filled in. With `--server` it requests a run with a token of the site and prints the run's page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trainer.cli import Parser, parse_positive_integer
from trainer.cli.site_api import SiteApi, add_site_flags
from trainer.errors import ExitCode, UserError
from trainer.text_files import decode_text

COMMAND = "dailytrain submit"
MODELS = "trainer/models"
GITHUB_REMOTE = re.compile(
    r"(?:https://github\.com/|git@github\.com:|ssh://git@github\.com/)([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a pull request's text, or request a run. Raise `UserError` for a commit that cannot be proposed."""
    options = build_parser().parse_args(argv)
    config = read_config(options.config)
    if options.server:
        SiteApi(options.server, options.token).check_token()
        if not options.architecture:
            raise UserError("--server needs --architecture")
    if options.push:
        push_commit(options)
    sha = find_commit()
    title = options.title or run_git("log", "-1", "--format=%s")
    if options.server:
        print_reply(request_run(options, config, sha, title), options.json)
    else:
        print_pull_request(options, config, title)
    return ExitCode.OK


def build_parser() -> Parser:
    parser = Parser(prog=COMMAND, description="Propose the current commit: a pull request's text, or a run by API.")
    add = parser.add_argument
    add("--hypothesis", required=True, metavar="TEXT", help="what you expect to see, and why")
    add("--expected-effect", default="not known", metavar="TEXT", help='such as "3 %% less compute" (%(default)s)')
    add("--contact", default="", metavar="TEXT", help="how to reach you, such as @ada (the author's address in git)")
    add("--architecture", default="", metavar="NAME", help="a name in ARCHITECTURES (the one whose file you changed)")
    add("--config", type=Path, metavar="FILE", help="JSON file with the entry's model, recipe and train settings")
    add("--title", default="", help="of the entry (the commit's subject)")
    add("--based-on", type=parse_positive_integer, metavar="ENTRY", help="number of the entry that yours builds on")
    add("--push", action="store_true", help=f"commit what changed in {MODELS}, and push the branch to origin, first")
    add("--open", action="store_true", help="open the pull request's form in a browser")
    add_site_flags(parser)
    add("--json", action="store_true", help="print the site's reply as JSON")
    return parser


def push_commit(options: argparse.Namespace) -> None:
    """Commit what changed in `MODELS`, and push the branch, which is not main, to the remote origin."""
    branch = run_git("rev-parse", "--abbrev-ref", "HEAD")
    if branch in ("HEAD", "main"):
        raise UserError("an entry needs a branch of its own: `git switch -c NAME` first")
    refuse_changes(":/", f":(top,exclude){MODELS}")
    if run_git("status", "--porcelain", "--", models := f":/{MODELS}"):
        run_git("add", "--", models)
        title = options.title or f"Add {options.architecture or 'an architecture'}"
        run_git("commit", "--quiet", "-m", title, "--", models)
    run_git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")


def run_git(*arguments: str) -> str:
    """Return what git prints. It never asks for a password or a host's key: nobody may be there to answer."""
    ssh = os.environ.get("GIT_SSH_COMMAND") or call_git("config", "core.sshCommand").stdout.strip() or "ssh"
    result = call_git(*arguments, GIT_TERMINAL_PROMPT="0", GIT_ASKPASS="", GIT_SSH_COMMAND=f"{ssh} -o BatchMode=yes")
    if result.returncode:
        reason = result.stderr.strip().splitlines()[-1:] or ["it failed"]
        raise UserError(remove_user(f"git {' '.join(arguments)}: {reason[0]}"))
    return result.stdout.strip()


def call_git(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    options = {"stdin": subprocess.DEVNULL, "env": {**os.environ, **environment}}
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, **options)


def remove_user(text: str) -> str:
    """Return a text without the names and tokens in its web addresses."""
    return re.sub(r"(https?://)[^/\s]*@", r"\1", text)


def read_config(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        content = json.loads(decode_text(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"--config {file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f'--config {file} must be a table, such as {{"model": {{"depth": 4}}}}')
    return content


# --- the text of a pull request ---------------------------------------------------------------------------------------


def print_pull_request(options: argparse.Namespace, config: dict[str, Any], title: str) -> None:
    body = write_description(options, config)
    sys.stdout.write(f"{title}\n\n{body}\n")
    if (form := build_form_address(options, title, body)) is None:
        return
    sys.stdout.write(f"\nThe form with this text: {form}\n")
    if options.open and not webbrowser.open(form):
        raise UserError("no browser was found: open the address yourself")


def write_description(options: argparse.Namespace, config: dict[str, Any]) -> str:
    """Return the block that the site reads (docs/how-to/pull-requests.md)."""
    fields = {
        "track": options.track,
        "architecture": options.architecture,
        "hypothesis": " ".join(options.hypothesis.split()),
        "expected_effect": options.expected_effect,
        "contact": options.contact or run_git("log", "-1", "--format=%ae"),
        "based_on": options.based_on,
        "config": json.dumps(config) if config else "",
    }
    return "\n".join(["---", *(f"{key}: {value}" for key, value in fields.items() if value or key == "track"), "---"])


def build_form_address(options: argparse.Namespace, title: str, body: str) -> str | None:
    """Return the address of GitHub's form for a pull request of the current branch; None for other repositories."""
    found = GITHUB_REMOTE.fullmatch(remove_user(options.repository) or find_remote())
    branch = run_git("rev-parse", "--abbrev-ref", "HEAD")
    if found is None or branch == "HEAD":
        return None
    return f"https://github.com/{found[1]}/compare/{branch}?{urlencode({'expand': 1, 'title': title, 'body': body})}"


def find_remote() -> str:
    try:
        return remove_user(run_git("remote", "get-url", "origin"))
    except UserError:
        return ""


# --- a run by API -----------------------------------------------------------------------------------------------------


def request_run(options: argparse.Namespace, config: dict[str, Any], sha: str, title: str) -> dict[str, Any]:
    """Return the site's reply. Raise `UserError` with its reason for a refusal."""
    api = SiteApi(options.server, options.token)
    payload = {
        "repository": find_repository(options.repository),
        "sha": sha,
        "architecture": options.architecture,
        "title": title[:120],
        "track": options.track,
        "hypothesis": options.hypothesis,
        "config": config,
        **({"based_on": options.based_on} if options.based_on else {}),  # a site may be older
        # Entries of one commit with different settings.
        "variant": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16] if config else "",
    }
    reply = api.request_run(payload)
    return {**reply, "status": f"{options.server.rstrip('/')}/api/v1/entries/{reply['entry']}/summary"}


def find_repository(given: str = "") -> str:
    """Return where a site can fetch the commit: `given`, else the remote origin, for GitHub as https."""
    repository = remove_user(given) or find_remote()
    if not repository:
        raise UserError("this repository has no remote origin: name one that the site can fetch with --repository")
    found = GITHUB_REMOTE.fullmatch(repository)
    return f"https://github.com/{found[1]}" if found else repository


def find_commit() -> str:
    """Return the current commit. Raise `UserError` if files have changes that it does not hold."""
    sha = run_git("rev-parse", "HEAD")
    refuse_changes(":/")
    return sha


def refuse_changes(*paths: str) -> None:
    """Raise `UserError` if git's files at these paths have changes, or others are added, that no commit holds."""
    if changed := run_git("status", "--porcelain", "--untracked-files=no", "--", *paths):
        raise UserError(
            f"{len(changed.splitlines())} files have changes that are not committed, such as {changed.split()[-1]}: "
            "commit them, or put them aside with `git stash`, first"
        )


def print_reply(reply: dict[str, Any], as_json: bool = False) -> None:
    lines = f"run {reply['run']} is {reply['state']}: {reply['reason']}\n{reply['page']}\nverdict: {reply['status']}"
    sys.stdout.write(f"{json.dumps(reply) if as_json else lines}\n")


if __name__ == "__main__":
    sys.exit(main())
