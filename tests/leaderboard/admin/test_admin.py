from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run, Season, Track
from leaderboard.publishing import publications
from leaderboard.rankings.standings import compute_standings
from leaderboard.schedule.track_templates import create_track
from leaderboard.submissions import intake
from scheduler import storage, transitions
from scheduler.models import Event
from tests.leaderboard.conftest import Repository, create_checkpoint
from tests.support import boards
from trainer import protocol

pytestmark = pytest.mark.processes


def test_entry_page_escapes_the_diff_and_links_github(
    maintainer_client: Client, main_repository: Repository, track: Track
) -> None:
    start = main_repository.git("rev-parse", "HEAD")
    main_repository.git("checkout", "--quiet", "-b", "idea")
    main_repository.commit("Idea", {"trainer/models/gpt.py": "x = '<script>alert(1)</script>'\n"})
    entry = intake.submit_entry(str(main_repository.path), "idea", "Idea", "gpt", track)
    page = maintainer_client.get(f"/admin/leaderboard/entry/{entry.pk}/change/").content.decode()
    assert '<td class="sign">+</td><td><code>x = &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;</code>' in page
    assert "<code>trainer/models/gpt.py</code>" in page
    Entry.objects.update(repository="https://github.com/ada/train.git")
    page = maintainer_client.get(f"/admin/leaderboard/entry/{entry.pk}/change/").content.decode()
    assert f'href="https://github.com/ada/train/compare/{start}...{entry.sha}"' in page


def test_entry_rejection_without_reason_is_refused(maintainer_client: Client, proposed_entry: Entry) -> None:
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/reject/"
    assert "needs a reason" in maintainer_client.post(address, {"reason": ""}, follow=True).content.decode()
    maintainer_client.post(address, {"reason": "It opens a socket."})
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.reason) == ("rejected", "It opens a socket.")
    assert Event.objects.about(proposed_entry).last().actor == "mara"  # type: ignore[union-attr]


def run_admin_action(client: Client, action: str, row: Model) -> str:
    data = {"action": action, "_selected_action": [row.pk]}
    return client.post(f"/admin/leaderboard/{row._meta.model_name}/", data, follow=True).content.decode()


def test_run_page_offers_actions_that_cancel_run_again_and_retry(maintainer_client: Client, run: Run) -> None:
    address = f"/admin/leaderboard/run/{run.pk}/change/"
    page = maintainer_client.get(address).content.decode()
    assert 'name="_save"' not in page
    assert f'name="_selected_action" value="{run.pk}"' in page
    assert maintainer_client.post(address, {"reason": "x"}).status_code == 403
    assert "wait for its result first" in run_admin_action(maintainer_client, "run_again", run)
    assert "because of the infrastructure" in run_admin_action(maintainer_client, "retry_failed", run)
    run_admin_action(maintainer_client, "cancel_runs", run)
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "Cancelled by mara.")
    assert "this action is not possible now" in run_admin_action(maintainer_client, "cancel_runs", run)
    run_admin_action(maintainer_client, "run_again", run)
    second = Run.objects.exclude(pk=run.pk).get()
    assert (second.entry, second.state, second.seed == run.seed) == (run.entry, "queued", False)
    transitions.fail_job(second.job, "site", "infrastructure", "No node.")
    run_admin_action(maintainer_client, "retry_failed", second)
    second.refresh_from_db()
    assert second.state == "queued"


@pytest.mark.django_db
def test_second_default_track_is_refused(track: Track) -> None:
    second = Track(slug="second", name="Second", season=track.season, budget="20steps", is_default=True)
    with pytest.raises(ValidationError, match="Another track is the default"):
        second.validate_constraints()
    with pytest.raises(IntegrityError):
        second.save()


def create_tune_track(track: Track, **fields: Any) -> Track:
    """Copy the track as one that fine-tunes."""
    values = {"pk": None, "slug": "tune", "is_default": False, "nightly": False, "is_traced": False, "ladder": {}}
    for name, value in {**values, **fields}.items():
        setattr(track, name, value)
    track.save()
    return track


def test_track_form_with_milestone_saves_start_checkpoint(maintainer_client: Client, track: Track, run: Run) -> None:
    create_checkpoint(run.job, 5)  # with run.json
    blob = storage.store_bytes(b"weights in bf16")
    file = storage.build_file_reference(blob, "model.safetensors")
    manifest = protocol.Checkpoint(step=10, files=(file,), milestone=50).model_dump(mode="json")
    publications.keep_weights(run, manifest, [blob], "50-percent", "50 %.")
    tune = create_tune_track(Track.objects.get(), start_run=run)
    form = open_form(maintainer_client, tune)
    assert [value for value, _ in form.fields["start_checkpoint"].choices] == ["", 10, 5]
    for _ in range(2):
        post_form(maintainer_client, tune, form, {"start_checkpoint": "10"})
        start = Track.objects.get(slug="tune").start_checkpoint
        assert (start.step, start.from_milestone) == (10, True)
    assert open_form(maintainer_client, tune)["start_checkpoint"].value() == 10


def test_track_form_with_new_followed_track_saves_start_of_following(maintainer_client: Client, track: Track) -> None:
    tune = create_tune_track(Track.objects.get())
    Track.objects.filter(pk=track.pk).update(releases=10)
    post_form(maintainer_client, tune, open_form(maintainer_client, tune), {"followed_track": str(track.pk)})
    tune.refresh_from_db()
    assert tune.followed_track == track
    assert tune.follows_since is not None


def test_javascript_url_is_refused_and_not_linked(
    maintainer_client: Client, main_repository: Repository, track: Track
) -> None:
    with pytest.raises(intake.IntakeError, match="must begin with https:// or http://"):
        intake.submit_entry(str(main_repository.path), "main", "Idea", "smear", track, url="javascript:alert(1)")
    entry = intake.submit_entry(str(main_repository.path), "main", "Idea", "smear", track)
    Entry.objects.update(url="javascript:alert(1)")
    PullRequest.objects.create(number=1, url="javascript:alert(2)", entry=entry)
    pages = [f"/admin/leaderboard/entry/{entry.pk}/change/", f"/entries/{entry.pk}/", "/admin/leaderboard/entry/"]
    for page in pages:
        assert 'href="javascript:' not in maintainer_client.get(page, follow=True).content.decode(), page


def test_retry_action_requeues_failed_outbox_message(maintainer_client: Client) -> None:
    message = outbox.enqueue("github.comment", "github.comment:1", {"pull": 1})
    OutboxMessage.objects.update(state=OutboxMessage.State.FAILED, problem="The App is not installed.")
    assert "The App is not installed." in maintainer_client.get("/admin/leaderboard/outboxmessage/").content.decode()
    assert maintainer_client.get(f"/admin/leaderboard/outboxmessage/{message.pk}/change/").status_code == 200
    run_admin_action(maintainer_client, "again", message)
    message.refresh_from_db()
    assert (message.state, message.problem) == ("pending", "")
    assert Event.objects.about(message).get().actor == "mara"


@pytest.fixture
def swarm_track(db: None) -> Track:
    season = Season.objects.create(name="One", corpus="python-docs", tokenizer="bpe:512")
    return create_track("swarm-gpt2", season)


def test_swarm_form_shows_and_saves_sizes_as_numbers(swarm_track: Track, admin_client: Client) -> None:
    form = open_form(admin_client, swarm_track)
    sizes = dict(re.findall(r'name="swarm_(\w+)" value="(\d+)"', str(form["swarm"])))
    assert sizes == {"stages": "2", "workers": "4", "minimum": "1", "patience": "30"}
    post_form(admin_client, swarm_track, form, {"swarm_stages": "3", "swarm_patience": ""})
    swarm_track.refresh_from_db()
    assert swarm_track.swarm == {"stages": 3, "workers": 4, "minimum": 1}


def open_form(client: Client, track: Track) -> Any:
    return client.get(f"/admin/leaderboard/track/{track.pk}/change/").context["adminform"].form


def post_form(client: Client, track: Track, form: Any, changes: dict[str, str]) -> None:
    """Send the form as a browser would, with some fields changed."""
    form_data: dict[str, Any] = {"hours-TOTAL_FORMS": 0, "hours-INITIAL_FORMS": 0}
    for name in form.fields:
        value = form[name].value()
        if name == "swarm":
            form_data |= {f"swarm_{part}": number for part, number in (value or {}).items()}
        elif isinstance(value, dict | list):
            form_data[name] = json.dumps(value)
        elif value is not None and value is not False:
            form_data[name] = value
    reply = client.post(f"/admin/leaderboard/track/{track.pk}/change/", form_data | changes)
    assert reply.status_code == 302, reply.context["adminform"].form.errors


def test_needed_seeds_action_queues_the_estimated_seeds(maintainer_client: Client, site: Any) -> None:
    track, entries = boards.create_board()
    level = entries["Level"]
    row = compute_standings(track).get_row(level.pk)
    needed = row.estimate.seeds_needed
    assert needed
    assert f"Level: {needed} more queued." in run_admin_action(maintainer_client, "run_needed_seeds", level)
    assert level.runs.filter(state="queued").count() == needed


def test_admin_index_lists_failures_next_nights_and_used_time(
    maintainer_client: Client, run: Run, track: Track
) -> None:
    assert "Mark one as nightly" in maintainer_client.get("/admin/").content.decode()
    Run.objects.update(state="failed", reason="The node went away.", cause="infrastructure", finished_at=timezone.now())
    Track.objects.update(nightly=True)
    call_command("install_schedule")
    page = maintainer_client.get("/admin/").content.decode()
    assert "The node went away." in page
    assert f'href="/admin/leaderboard/run/{run.pk}/change/"' in page
    assert f'href="/admin/leaderboard/track/{track.pk}/night/"' in page
    assert "would fail." in page
    assert "GPU-hours in 24 hours" in page
    assert "Solar events" not in page
