"""Actions on runs by authors and maintainers on the run page and in the admin."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from leaderboard import runs
from leaderboard.models import Entry, Run
from leaderboard.run_states import RunError
from scheduler import leases, uploads
from scheduler.models import Job, Lease, Node
from tests.leaderboard.conftest import finish_run
from tests.leaderboard.job_handlers.test_train import claim_job, upload_file
from tests.scheduler.test_claims_race import call_concurrently
from trainer import protocol

pytestmark = pytest.mark.sql


@pytest.fixture
def entry_author(run: Run, client: Client) -> User:
    """The user who submitted the entry, signed in."""
    user = User.objects.create_user("ada")
    Entry.objects.update(requested_by=user)
    client.force_login(user)
    return user


def post_action(client: Client, run: Run, action: str) -> str:
    response = client.post(f"/runs/{run.pk}/ask/{action}/", follow=True)
    run.refresh_from_db()
    assert response.status_code == 200, response.status_code
    return re.sub(r"\s+", " ", response.content.decode())


def list_buttons(client: Client, run: Run) -> list[str]:
    return re.findall(rf'action="/runs/{run.pk}/ask/([a-z-]+)/"', client.get(f"/runs/{run.pk}/").content.decode())


def get_job(run: Run) -> Job:
    return Job.objects.get(run=run)


def test_author_can_hold_resume_and_cancel_queued_run(client: Client, entry_author: User, run: Run) -> None:
    assert list_buttons(client, run) == ["hold", "cancel"]
    page = post_action(client, run, "hold")
    assert "The run is held." in page
    assert "Held by ada." in page
    assert (run.state, get_job(run).state) == ("queued", Job.State.HELD)
    assert list_buttons(client, run) == ["resume", "cancel"]
    post_action(client, run, "resume")
    assert (run.reason, get_job(run).state) == ("", Job.State.QUEUED)
    post_action(client, run, "cancel")
    assert (run.state, get_job(run).state) == ("cancelled", Job.State.CANCELLED)
    assert list_buttons(client, run) == ["again"]
    page = post_action(client, run, "again")
    second_run = run.entry.runs.exclude(pk=run.pk).get()
    assert "This run is queued." in page
    assert f"run {second_run.pk}</span>" in page  # its page is shown
    assert (second_run.state, second_run.budget, second_run.seed == run.seed) == ("queued", run.budget, False)
    assert "wait for its result first" in post_action(client, run, "again")
    assert run.entry.runs.count() == 2


def test_held_training_run_resumes_from_its_checkpoint(
    client: Client, entry_author: User, run: Run, capable_node: Node
) -> None:
    lease, _ = claim_job(capable_node)
    post_action(client, run, "hold")
    lease = Lease.objects.select_related("job", "node").get(pk=lease.pk)
    assert leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1)).stop == "finish"
    weights = upload_file(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights,)))
    leases.finish_lease(lease, protocol.FinishLease(outcome="released", reason="Held by ada."))
    run.refresh_from_db()
    assert (run.state, get_job(run).state) == ("paused", Job.State.HELD)
    assert run.reason == "Held by ada. It resumes from step 10 when it is queued again."
    assert leases.claim_job(capable_node) is None
    post_action(client, run, "resume")
    _, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume.step == 10


@pytest.mark.django_db(transaction=True)
def test_concurrent_reruns_queue_one_run(client: Client, entry_author: User, run: Run) -> None:
    post_action(client, run, "cancel")

    def rerun_as_author() -> None:
        with contextlib.suppress(RunError):
            runs.rerun(Run.objects.get(pk=run.pk), actor="ada")

    call_concurrently([rerun_as_author] * 4)
    assert run.entry.runs.count() == 2


def test_rerun_of_scored_run_is_for_maintainers(
    client: Client, entry_author: User, run: Run, node: Node, maintainer: User
) -> None:
    finish_run(run, node)
    assert list_buttons(client, run) == []
    confirmation_run = runs.make_run(run.entry, run.track, purpose=Run.Purpose.CONFIRMATION)
    runs.queue_run(confirmation_run)
    assert client.post(f"/runs/{confirmation_run.pk}/ask/cancel/").status_code == 403
    client.force_login(maintainer)
    assert list_buttons(client, run) == ["again"]
    assert list_buttons(client, confirmation_run) == ["hold", "cancel"]


def test_actions_of_other_users_are_forbidden(client: Client, entry_author: User, run: Run) -> None:
    Entry.objects.update(author="mallory")  # the author of a commit can be any name
    for other_user in (None, User.objects.create_user("mallory")):
        other_client = Client()
        if other_user:
            other_client.force_login(other_user)
        assert list_buttons(other_client, run) == []
        assert other_client.post(f"/runs/{run.pk}/ask/cancel/").status_code == 403
    run.refresh_from_db()
    assert run.state == "queued"


@pytest.mark.parametrize("is_verified", [False, True])
def test_maintainer_before_second_step_cannot_act_on_a_run(
    run: Run, maintainer: User, client: Client, settings: Settings, is_verified: bool
) -> None:
    settings.STAFF_TWO_STEP = True
    client.force_login(maintainer)
    if is_verified:
        session = client.session
        session["account_authentication_methods"] = [{"method": "mfa", "at": time.time()}]
        session["account_authentication_methods_user"] = str(maintainer.pk)
        session.save()
    assert bool(list_buttons(client, run)) == is_verified
    response = client.post(f"/runs/{run.pk}/ask/cancel/")
    assert response.status_code == (302 if is_verified else 403)
    assert ("two-factor authentication" in response.content.decode()) == (not is_verified)
    run.refresh_from_db()
    assert run.state == ("cancelled" if is_verified else "queued")
    Entry.objects.update(requested_by=maintainer)
    own_run = runs.make_run(Entry.objects.get(), run.track)
    runs.queue_run(own_run)
    assert list_buttons(client, own_run) == ["hold", "cancel"], "an author needs no second step"


def test_admin_actions_hold_queue_and_raise_priority(run: Run, maintainer: User, client: Client) -> None:
    client.force_login(maintainer)

    def run_admin_action(action: str) -> None:
        response = client.post("/admin/leaderboard/run/", {"action": action, "_selected_action": [run.pk]})
        assert response.status_code == 302

    run_admin_action("hold")
    assert get_job(run).state == Job.State.HELD
    run_admin_action("resume_held")
    assert get_job(run).state == Job.State.QUEUED
    priorities = [get_job(run).priority]
    for _ in range(4):
        run_admin_action("raise_priority")
        priorities.append(get_job(run).priority)
    assert priorities == [
        Job.Priority.COMMUNITY,
        Job.Priority.MAINTAINER,
        Job.Priority.CONFIRMATION,
        *2 * [Job.Priority.NIGHTLY],
    ]


def test_run_that_failed_is_retried_unless_its_entry_is_withdrawn(
    client: Client, entry_author: User, run: Run, capable_node: Node
) -> None:
    Job.objects.update(max_attempts=1)
    lease, _ = claim_job(capable_node)
    failure = protocol.FinishLease(outcome="failed", cause="infrastructure", reason="The disk is full.")
    leases.finish_lease(lease, failure)
    assert list_buttons(client, run) == ["retry", "again"]
    assert "may choose “Retry with this seed”" in client.get(f"/runs/{run.pk}/").content.decode()
    Entry.objects.update(state=Entry.State.WITHDRAWN)
    assert "retry" not in list_buttons(client, run)
    run.refresh_from_db()
    with pytest.raises(RunError, match="only runs of approved entries"):
        runs.retry_run(Run.objects.get(pk=run.pk), actor="mara")
    with pytest.raises(RunError):
        runs.rerun(Run.objects.get(pk=run.pk), actor="mara")
    assert Run.objects.count() == 1
    Entry.objects.update(state=Entry.State.APPROVED)
    post_action(client, run, "retry")
    assert (run.state, get_job(run).state) == ("queued", Job.State.QUEUED)
