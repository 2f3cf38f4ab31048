from __future__ import annotations

import json
import re
import shlex

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from leaderboard.models import ApiToken, Entry, Run, Season, Track
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import Repository, lease


@pytest.fixture
def mara(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


def test_the_page_shows_the_commit_and_approves_just_that(mara: Client, idea: Entry) -> None:
    address = f"/admin/leaderboard/entry/{idea.pk}/change/"
    page = mara.get(address).content.decode()
    shown = re.search(r'name="sha" value="([0-9a-f]{40})"', page)
    assert shown
    assert shown[1] == idea.sha
    mara.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": shown[1]})
    idea.refresh_from_db()
    assert (idea.state, idea.approved_by and idea.approved_by.username) == ("approved", "mara")
    assert Run.objects.get().state == "queued"
    assert 'name="sha"' not in mara.get(address).content.decode()


def test_the_page_shows_the_difference_as_text(mara: Client, main: Repository, track: Track, tmp_path: object) -> None:
    from leaderboard.submissions import intake

    start = main.git("rev-parse", "HEAD")
    main.git("checkout", "--quiet", "-b", "idea")
    main.commit("Idea", {"trainer/models/gpt.py": "x = '<script>alert(1)</script>'\n"})
    entry = intake.submit_entry(str(main.path), "idea", "Idea", "gpt", track)
    assert entry.base_sha == start
    page = mara.get(f"/admin/leaderboard/entry/{entry.pk}/change/").content.decode()
    assert '<td class="sign">+</td><td><code>x = &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;</code>' in page
    assert "<code>trainer/models/gpt.py</code>" in page


def test_a_page_that_showed_another_commit_approves_nothing(mara: Client, idea: Entry) -> None:
    answer = mara.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": "0" * 40}, follow=True)
    assert "You reviewed 00000000" in answer.content.decode()
    assert not Job.objects.exists()


def test_rejecting_needs_a_reason(mara: Client, idea: Entry) -> None:
    address = f"/admin/leaderboard/entry/{idea.pk}/reject/"
    assert "needs a reason" in mara.post(address, {"reason": ""}, follow=True).content.decode()
    mara.post(address, {"reason": "It opens a socket."})
    idea.refresh_from_db()
    assert (idea.state, idea.reason) == ("rejected", "It opens a socket.")
    assert Event.objects.about(idea).last().actor == "mara"  # type: ignore[union-attr]


def test_whoever_may_only_look_cannot_decide(client: Client, idea: Entry) -> None:
    viewer = User.objects.create_user("vic", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_entry"))
    client.force_login(viewer)
    page = client.get(f"/admin/leaderboard/entry/{idea.pk}/change/")
    assert page.status_code == 200
    assert 'name="sha"' not in page.content.decode()
    assert client.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": idea.sha}).status_code == 403
    assert client.get(f"/admin/leaderboard/entry/{idea.pk}/approve/").status_code == 405
    client.logout()
    assert client.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": idea.sha}).status_code == 302
    idea.refresh_from_db()
    assert idea.state == "proposed"


def test_a_decision_needs_the_csrf_token(maintainer: User, idea: Entry) -> None:
    forged = Client(enforce_csrf_checks=True)
    forged.force_login(maintainer)
    assert forged.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": idea.sha}).status_code == 403


def act(client: Client, action: str, run: Run) -> str:
    data = {"action": action, "_selected_action": [run.pk]}
    return client.post("/admin/leaderboard/run/", data, follow=True).content.decode()


def test_runs_are_cancelled(mara: Client, run: Run) -> None:
    act(mara, "cancel_runs", run)
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "Cancelled by mara.")


def test_a_run_is_repeated_with_a_new_seed(mara: Client, run: Run) -> None:
    act(mara, "run_again", run)
    first, second = Run.objects.order_by("pk")
    assert (second.entry, second.state) == (first.entry, "queued")
    assert second.seed != first.seed


def test_only_an_infrastructure_failure_goes_on(mara: Client, run: Run, node: Node) -> None:
    assert run.job
    assert "because of the infrastructure" in act(mara, "go_on", run)
    lease(run.job, node)
    Job.objects.update(state=Job.State.FAILED)
    get_job_kind(run.job).handle_failure(run.job, "infrastructure", "No node.")
    act(mara, "go_on", run)
    run.refresh_from_db()
    assert run.state == "queued"


def test_a_new_token_is_shown_once_with_a_line_to_paste(mara: Client, maintainer: User) -> None:
    answer = mara.post(
        "/admin/leaderboard/apitoken/add/", {"name": "CI", "owner": maintainer.pk, "scope": "runs:create"}
    )
    page = answer.content.decode()
    token = ApiToken.objects.get()
    found = re.search(r'id="secret">(dt_[\w-]+)<', page)
    assert found
    assert ApiToken.objects.with_secret(found[1]) == token
    assert "no-store" in answer.headers["Cache-Control"]
    assert found[1] not in mara.get(f"/admin/leaderboard/apitoken/{token.pk}/change/").content.decode()


def test_the_line_to_paste_is_a_shell_command_with_json() -> None:
    from leaderboard.admin.tracks import build_curl_command

    line = build_curl_command("dt_x").replace("$(git remote get-url origin)", "R").replace("$(git rev-parse HEAD)", "S")
    words = shlex.split(line.replace("\\\n", " ").replace("$(git log -1 --format=%h)", "T"))
    assert words[2] == "http://127.0.0.1:8000/api/v1/runs"
    assert "Authorization: Bearer dt_x" in words
    wanted = {"repository": "R", "sha": "S", "architecture": "gpt", "title": "T"}
    assert json.loads(words[words.index("-d") + 1]) == wanted


def test_a_token_is_revoked(mara: Client, maintainer: User) -> None:
    token = ApiToken(name="CI", owner=maintainer)
    token.draw_secret()
    token.save()
    mara.post(f"/admin/leaderboard/apitoken/{token.pk}/change/", {"name": "CI", "revoked": "on"})
    token.refresh_from_db()
    assert token.revoked


def test_a_track_that_no_run_could_follow_is_refused(mara: Client, track: Track) -> None:
    fields = {
        "slug": "x", "name": "X", "season": track.season_id, "expected_seconds": "10", "config": "{}", "suite": "[]",
        "needs_labels": "[]", "limits": "{}", "position": "0",
        "ladder": "{}", "seeds": "1", "probe_seconds": "2",
        "kind": "competition", "trial": "{}", "needs_memory_bytes": "0",
        "kappa_tolerance": "0.03", "drift_tolerance": "0.01", "confirmations": "3",
        "monthly": "0", "releases": "0", "hours_zone": "UTC", "hours-TOTAL_FORMS": "0", "hours-INITIAL_FORMS": "0",
    }  # fmt: skip
    page = mara.post("/admin/leaderboard/track/add/", {**fields, "budget": "soon"}).content.decode()
    assert "soon" in page
    assert not Track.objects.filter(slug="x").exists()
    mara.post("/admin/leaderboard/track/add/", {**fields, "budget": "5m"})
    assert Track.objects.filter(slug="x").exists()


@pytest.mark.parametrize("model", ["season", "track", "entry", "run", "night", "replay", "apitoken"])
def test_every_list_opens(mara: Client, run: Run, model: str) -> None:
    assert mara.get(f"/admin/leaderboard/{model}/").status_code == 200


def test_a_runs_page_opens(mara: Client, run: Run) -> None:
    assert mara.get(f"/admin/leaderboard/run/{run.pk}/change/").status_code == 200
    assert Season.objects.count() == 1
