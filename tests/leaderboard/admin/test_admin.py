from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest
from django.test import Client

from leaderboard.models import ApiToken, Entry, PullRequest, Run, Season, Track
from leaderboard.publishing import publications
from scheduler import storage, transitions
from scheduler.models import Event, Job
from tests.leaderboard.conftest import Repository, create_checkpoint
from trainer import protocol

pytestmark = pytest.mark.processes


@pytest.fixture
def maintainer_client(client: Client, maintainer: User) -> Client:
    client.force_login(maintainer)
    return client


def test_entry_page_shows_commit_and_approves_that_commit(maintainer_client: Client, proposed_entry: Entry) -> None:
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/change/"
    page = maintainer_client.get(address).content.decode()
    match = re.search(r'name="sha" value="([0-9a-f]{40})"', page)
    assert match
    assert match[1] == proposed_entry.sha
    maintainer_client.post(f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/", {"sha": match[1]})
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.approved_by and proposed_entry.approved_by.username) == (
        "approved",
        "mara",
    )
    assert Run.objects.get().state == "queued"
    assert 'name="sha"' not in maintainer_client.get(address).content.decode()


def test_entry_page_escapes_the_diff(
    maintainer_client: Client, main_repository: Repository, track: Track, tmp_path: object
) -> None:
    from leaderboard.submissions import intake

    start = main_repository.git("rev-parse", "HEAD")
    main_repository.git("checkout", "--quiet", "-b", "idea")
    main_repository.commit("Idea", {"trainer/models/gpt.py": "x = '<script>alert(1)</script>'\n"})
    entry = intake.submit_entry(str(main_repository.path), "idea", "Idea", "gpt", track)
    assert entry.base_sha == start
    page = maintainer_client.get(f"/admin/leaderboard/entry/{entry.pk}/change/").content.decode()
    assert '<td class="sign">+</td><td><code>x = &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;</code>' in page
    assert "<code>trainer/models/gpt.py</code>" in page


def test_entry_approval_with_other_commit_is_refused(maintainer_client: Client, proposed_entry: Entry) -> None:
    response = maintainer_client.post(
        f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/", {"sha": "0" * 40}, follow=True
    )
    assert "You reviewed 00000000" in response.content.decode()
    assert not Job.objects.exists()


def test_entry_rejection_without_reason_is_refused(maintainer_client: Client, proposed_entry: Entry) -> None:
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/reject/"
    assert "needs a reason" in maintainer_client.post(address, {"reason": ""}, follow=True).content.decode()
    maintainer_client.post(address, {"reason": "It opens a socket."})
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.reason) == ("rejected", "It opens a socket.")
    assert Event.objects.about(proposed_entry).last().actor == "mara"  # type: ignore[union-attr]


def test_entry_approval_by_viewer_is_forbidden(client: Client, proposed_entry: Entry) -> None:
    viewer = User.objects.create_user("vic", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_entry"))
    client.force_login(viewer)
    page = client.get(f"/admin/leaderboard/entry/{proposed_entry.pk}/change/")
    assert page.status_code == 200
    assert 'name="sha"' not in page.content.decode()
    assert (
        client.post(f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/", {"sha": proposed_entry.sha}).status_code
        == 403
    )
    assert client.get(f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/").status_code == 405
    client.logout()
    assert (
        client.post(f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/", {"sha": proposed_entry.sha}).status_code
        == 302
    )
    proposed_entry.refresh_from_db()
    assert proposed_entry.state == "proposed"


def test_entry_approval_with_invalid_field_names_it(maintainer_client: Client, proposed_entry: Entry) -> None:
    values = {"sha": proposed_entry.sha, "budget": "1" * 41, "impact": "much"}
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/"
    page = maintainer_client.post(address, values, follow=True).content.decode()
    assert "budget: Ensure this value has at most 40 characters" in page
    assert "impact: Enter a whole number." in page


def test_entry_approval_without_csrf_token_is_forbidden(maintainer: User, proposed_entry: Entry) -> None:
    forged = Client(enforce_csrf_checks=True)
    forged.force_login(maintainer)
    assert (
        forged.post(f"/admin/leaderboard/entry/{proposed_entry.pk}/approve/", {"sha": proposed_entry.sha}).status_code
        == 403
    )


def test_entry_page_links_changes_on_github(maintainer_client: Client, proposed_entry: Entry) -> None:
    Entry.objects.update(repository="https://github.com/ada/train.git", base_sha="b" * 40)
    page = maintainer_client.get(f"/admin/leaderboard/entry/{proposed_entry.pk}/change/").content.decode()
    assert f'href="https://github.com/ada/train/compare/{"b" * 40}...{proposed_entry.sha}"' in page


def run_admin_action(client: Client, action: str, run: Run) -> str:
    data = {"action": action, "_selected_action": [run.pk]}
    return client.post("/admin/leaderboard/run/", data, follow=True).content.decode()


def test_cancel_action_cancels_run(maintainer_client: Client, run: Run) -> None:
    run_admin_action(maintainer_client, "cancel_runs", run)
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "Cancelled by mara.")
    assert "this action is not possible now" in run_admin_action(maintainer_client, "cancel_runs", run)


def test_run_again_action_queues_run_with_new_seed(maintainer_client: Client, run: Run) -> None:
    assert "wait for its result first" in run_admin_action(maintainer_client, "run_again", run)
    run_admin_action(maintainer_client, "cancel_runs", run)
    run_admin_action(maintainer_client, "run_again", run)
    first, second = Run.objects.order_by("pk")
    assert (second.entry, second.state) == (first.entry, "queued")
    assert second.seed != first.seed


def test_retry_action_resumes_infrastructure_failures_only(maintainer_client: Client, run: Run) -> None:
    assert run.job
    assert "because of the infrastructure" in run_admin_action(maintainer_client, "retry_failed", run)
    transitions.fail_job(run.job, "site", "infrastructure", "No node.")
    run_admin_action(maintainer_client, "retry_failed", run)
    run.refresh_from_db()
    assert run.state == "queued"


def test_new_api_token_is_shown_once_with_command(maintainer_client: Client, maintainer: User) -> None:
    response = maintainer_client.post(
        "/admin/leaderboard/apitoken/add/", {"name": "CI", "owner": maintainer.pk, "scope": "runs:create"}
    )
    page = response.content.decode()
    token = ApiToken.objects.get()
    match = re.search(r'id="secret">(dt_[\w-]+)<', page)
    assert match
    assert ApiToken.objects.with_secret(match[1]) == token
    assert "no-store" in response.headers["Cache-Control"]
    assert match[1] not in maintainer_client.get(f"/admin/leaderboard/apitoken/{token.pk}/change/").content.decode()


def test_api_token_command_is_valid_shell_with_json() -> None:
    from leaderboard.admin.tracks import build_curl_command

    command = (
        build_curl_command("dt_x").replace("$(git remote get-url origin)", "R").replace("$(git rev-parse HEAD)", "S")
    )
    arguments = shlex.split(command.replace("\\\n", " ").replace("$(git log -1 --format=%h)", "T"))
    assert arguments[2] == "http://127.0.0.1:8000/api/v1/runs"
    assert "Authorization: Bearer dt_x" in arguments
    payload = {"repository": "R", "sha": "S", "architecture": "gpt", "title": "T"}
    assert json.loads(arguments[arguments.index("-d") + 1]) == payload


def test_api_token_form_revokes_token(maintainer_client: Client, maintainer: User) -> None:
    token = ApiToken(name="CI", owner=maintainer)
    token.draw_secret()
    token.save()
    maintainer_client.post(f"/admin/leaderboard/apitoken/{token.pk}/change/", {"name": "CI", "revoked": "on"})
    token.refresh_from_db()
    assert token.revoked


def test_track_form_with_invalid_budget_is_refused(maintainer_client: Client, track: Track) -> None:
    fields = {
        "slug": "x", "name": "X", "season": track.season_id, "expected_seconds": "10", "config": "{}", "suite": "[]",
        "needs_labels": "[]", "limits": "{}", "position": "0",
        "ladder": "{}", "seeds": "1", "probe_seconds": "2",
        "kind": "competition", "trial": "{}", "needs_memory_bytes": "0",
        "kappa_tolerance": "0.03", "drift_tolerance": "0.01", "confirmations": "3",
        "monthly": "0", "milestones": "10", "releases": "0",
        "hours_zone": "UTC", "hours-TOTAL_FORMS": "0", "hours-INITIAL_FORMS": "0",
    }  # fmt: skip
    page = maintainer_client.post("/admin/leaderboard/track/add/", {**fields, "budget": "soon"}).content.decode()
    assert "soon" in page
    assert not Track.objects.filter(slug="x").exists()
    maintainer_client.post("/admin/leaderboard/track/add/", {**fields, "budget": "5m"})
    assert Track.objects.filter(slug="x").exists()


@pytest.mark.django_db
def test_second_default_track_is_refused(track: Track) -> None:
    second = Track(slug="second", name="Second", season=track.season, budget="20steps", is_default=True)
    with pytest.raises(ValidationError, match="Another track is the default"):
        second.validate_constraints()
    with pytest.raises(IntegrityError):
        second.save()


def test_track_form_with_milestone_saves_start_checkpoint(maintainer_client: Client, track: Track, run: Run) -> None:
    assert run.job
    create_checkpoint(run.job, 5)  # with run.json
    blob = storage.store_bytes(b"weights in bf16")
    file = storage.build_file_reference(blob, "model.safetensors")
    manifest = protocol.Checkpoint(step=10, files=(file,), milestone=50).model_dump(mode="json")
    publications.keep_weights(run, manifest, [blob], "50-percent", "50 %.")
    finetune_track = Track.objects.get(pk=track.pk)
    (
        finetune_track.pk,
        finetune_track.slug,
        finetune_track.start_run,
        finetune_track.is_traced,
        finetune_track.start_checkpoint,
    ) = None, "tune", run, False, None
    finetune_track.ladder = {}
    finetune_track.save()
    address = f"/admin/leaderboard/track/{finetune_track.pk}/change/"
    form = maintainer_client.get(address).context["adminform"].form
    assert [value for value, _ in form.fields["start_checkpoint"].choices] == ["", 10, 5]
    fields = {name: form[name].value() for name in form.fields}
    form_data = {name: value for name, value in fields.items() if value is not None and value is not False}
    form_data |= {"start_checkpoint": "10", "hours-TOTAL_FORMS": "0", "hours-INITIAL_FORMS": "0"}
    for _ in range(2):
        response = maintainer_client.post(address, form_data)
        assert response.status_code == 302, response.context["adminform"].form.errors
        start = Track.objects.get(slug="tune").start_checkpoint
        assert start is not None
        assert (start.step, start.from_milestone) == (10, True)
    assert maintainer_client.get(address).context["adminform"].form["start_checkpoint"].value() == 10


@pytest.mark.parametrize("model", ["season", "track", "entry", "run", "night", "replay", "apitoken"])
def test_admin_list_of_each_model_opens(maintainer_client: Client, run: Run, model: str) -> None:
    assert maintainer_client.get(f"/admin/leaderboard/{model}/").status_code == 200


def test_admin_run_page_opens(maintainer_client: Client, run: Run) -> None:
    assert maintainer_client.get(f"/admin/leaderboard/run/{run.pk}/change/").status_code == 200
    assert Season.objects.count() == 1


def test_track_page_opens_for_staff_with_view_permission(client: Client, track: Track) -> None:
    viewer = User.objects.create_user("vera", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_track"))
    client.force_login(viewer)
    assert client.get(f"/admin/leaderboard/track/{track.pk}/change/").status_code == 200


def test_javascript_url_is_refused_and_not_linked(
    maintainer_client: Client, main_repository: Repository, track: Track
) -> None:
    from leaderboard.submissions import intake

    with pytest.raises(intake.IntakeError, match="must begin with https:// or http://"):
        intake.submit_entry(str(main_repository.path), "main", "Idea", "smear", track, url="javascript:alert(1)")
    entry = intake.submit_entry(str(main_repository.path), "main", "Idea", "smear", track)
    Entry.objects.update(url="javascript:alert(1)")
    PullRequest.objects.create(number=1, url="javascript:alert(2)", entry=entry)
    pages = [f"/admin/leaderboard/entry/{entry.pk}/change/", f"/entries/{entry.pk}/", "/admin/leaderboard/entry/"]
    for page in pages:
        assert 'href="javascript:' not in maintainer_client.get(page, follow=True).content.decode(), page


@pytest.fixture
def change_rows_before_save(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that changes all rows of a model after the admin has loaded one and before it saves that."""

    def prepare(model: type[Model], **fields: Any) -> None:
        def save_form(self: ModelAdmin[Any], request: HttpRequest, form: ModelForm[Any], change: bool) -> Any:
            model._default_manager.update(**fields)
            return form.save(commit=False)

        monkeypatch.setattr(ModelAdmin, "save_form", save_form)

    return prepare


def test_entry_form_saved_during_rejection_keeps_rejection(
    maintainer_client: Client, proposed_entry: Entry, change_rows_before_save: Callable[..., None]
) -> None:
    change_rows_before_save(Entry, state="rejected", reason="Too slow.")
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/change/"
    form_data = {"title": "A better title", "impact": "5", "hypothesis": ""}
    assert maintainer_client.post(address, form_data).status_code == 302
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.reason) == ("rejected", "Too slow.")
    assert (proposed_entry.title, proposed_entry.impact) == ("A better title", 5)


def test_run_form_saved_during_state_change_keeps_new_state(
    maintainer_client: Client, run: Run, change_rows_before_save: Callable[..., None]
) -> None:
    change_rows_before_save(Run, state="done")
    assert maintainer_client.post(f"/admin/leaderboard/run/{run.pk}/change/", {}).status_code == 302
    run.refresh_from_db()
    assert run.state == "done"


def test_track_form_with_new_followed_track_saves_start_of_following(maintainer_client: Client, track: Track) -> None:
    tune = Track.objects.get(pk=track.pk)
    Track.objects.update(releases=10)
    tune.pk, tune.slug, tune.is_default, tune.nightly = None, "tune", False, False
    tune.save()
    address = f"/admin/leaderboard/track/{tune.pk}/change/"
    form = maintainer_client.get(address).context["adminform"].form
    fields = {name: form[name].value() for name in form.fields if name != "swarm"}
    form_data = {name: value for name, value in fields.items() if value is not None and value is not False}
    form_data |= {"followed_track": str(track.pk), "hours-TOTAL_FORMS": "0", "hours-INITIAL_FORMS": "0"}
    response = maintainer_client.post(address, form_data)
    assert response.status_code == 302, response.context["adminform"].form.errors
    tune.refresh_from_db()
    assert tune.followed_track == track
    assert tune.follows_since is not None
