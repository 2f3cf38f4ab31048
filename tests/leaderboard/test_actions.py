"""What the author of an entry asks of its runs, on their pages: nobody else can, and nothing that is not possible."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from leaderboard import runs
from leaderboard.models import Entry, Run
from scheduler import leases, uploads
from scheduler.models import Job, Lease, Node
from tests.leaderboard.conftest import finish
from tests.leaderboard.job_handlers.test_train import sent, take
from trainer import protocol


@pytest.fixture
def ada(run: Run, client: Client) -> User:
    """Who entered it, signed in."""
    user = User.objects.create_user("ada")
    Entry.objects.update(requested_by=user)
    client.force_login(user)
    return user


def ask(client: Client, run: Run, wish: str) -> str:
    answer = client.post(f"/runs/{run.pk}/ask/{wish}/", follow=True)
    run.refresh_from_db()
    assert answer.status_code == 200, answer.status_code
    return re.sub(r"\s+", " ", answer.content.decode())


def buttons(client: Client, run: Run) -> list[str]:
    return re.findall(rf'action="/runs/{run.pk}/ask/([a-z-]+)/"', client.get(f"/runs/{run.pk}/").content.decode())


def job_of(run: Run) -> Job:
    return Job.objects.get(run=run)


def test_a_queued_run_is_held_let_go_and_cancelled_by_its_author(client: Client, ada: User, run: Run) -> None:
    assert buttons(client, run) == ["hold", "cancel"]
    page = ask(client, run, "hold")
    assert "The run is held." in page
    assert "Held by ada." in page
    assert (run.state, job_of(run).state) == ("queued", Job.State.HELD)
    assert buttons(client, run) == ["go-on", "cancel"]
    ask(client, run, "go-on")
    assert (run.reason, job_of(run).state) == ("", Job.State.QUEUED)
    ask(client, run, "cancel")
    assert (run.state, job_of(run).state) == ("cancelled", Job.State.CANCELLED)
    assert buttons(client, run) == ["again"]


def test_one_that_trains_is_held_with_its_checkpoint_and_goes_on_from_there(
    client: Client, ada: User, run: Run, able: Node
) -> None:
    lease, _ = take(able)
    ask(client, run, "hold")
    lease = Lease.objects.select_related("job", "node").get(pk=lease.pk)
    assert leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1)).stop == "finish"
    weights = sent(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights,)))
    leases.finish_lease(lease, protocol.FinishLease(outcome="released", reason="Held by ada."))
    run.refresh_from_db()
    assert (run.state, job_of(run).state) == ("paused", Job.State.HELD)
    assert run.reason == "Held by ada. It resumes from step 10 when it is queued again."
    assert leases.claim_job(able) is None
    ask(client, run, "go-on")
    _, spec = take(able)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume
    assert spec.order.resume.step == 10


def test_what_did_not_arrive_is_run_again_with_a_new_seed_one_at_a_time(client: Client, ada: User, run: Run) -> None:
    ask(client, run, "cancel")
    assert "Another run is queued." in ask(client, run, "again")
    other = run.entry.runs.exclude(pk=run.pk).get()
    assert (other.state, other.budget) == ("queued", run.budget)
    assert other.seed != run.seed
    assert "wait for its result first" in ask(client, run, "again")
    assert run.entry.runs.count() == 2


def test_more_seeds_of_a_result_and_runs_that_check_it_are_for_maintainers(
    client: Client, ada: User, run: Run, node: Node, maintainer: User
) -> None:
    finish(run, node)
    assert buttons(client, run) == []
    check = runs.make_run(run.entry, run.track, purpose=Run.Purpose.CONFIRMATION)
    runs.queue_run(check)
    assert client.post(f"/runs/{check.pk}/ask/cancel/").status_code == 403
    client.force_login(maintainer)
    assert buttons(client, run) == ["again"]
    assert buttons(client, check) == ["hold", "cancel"]


def test_what_the_infrastructure_broke_goes_on_with_its_seed(client: Client, ada: User, run: Run, able: Node) -> None:
    Job.objects.update(max_attempts=1)
    lease, _ = take(able)
    leases.finish_lease(
        lease, protocol.FinishLease(outcome="failed", cause="infrastructure", reason="The disk is full.")
    )
    assert buttons(client, run) == ["retry", "again"]
    ask(client, run, "retry")
    assert (run.state, job_of(run).state) == ("queued", Job.State.QUEUED)


def test_what_is_not_possible_just_now_is_refused_with_a_sentence(client: Client, ada: User, run: Run) -> None:
    assert "this action is not possible now" in ask(client, run, "go-on")
    assert client.post(f"/runs/{run.pk}/ask/win/").status_code == 404
    assert client.get(f"/runs/{run.pk}/ask/cancel/").status_code == 405


def test_nobody_else_can_ask(client: Client, ada: User, run: Run) -> None:
    Entry.objects.update(author="mallory")  # a commit's author says who he likes
    for stranger in (None, User.objects.create_user("mallory")):
        other = Client()
        if stranger:
            other.force_login(stranger)
        assert buttons(other, run) == []
        assert other.post(f"/runs/{run.pk}/ask/cancel/").status_code == 403
    run.refresh_from_db()
    assert run.state == "queued"


def test_a_maintainer_can(run: Run, maintainer: User, client: Client) -> None:
    client.force_login(maintainer)
    assert buttons(client, run) == ["hold", "cancel"]
    ask(client, run, "cancel")
    assert run.state == "cancelled"


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
    assert bool(buttons(client, run)) == is_verified
    answer = client.post(f"/runs/{run.pk}/ask/cancel/")
    assert answer.status_code == (302 if is_verified else 403)
    assert ("second step" in answer.content.decode()) == (not is_verified)
    run.refresh_from_db()
    assert run.state == ("cancelled" if is_verified else "queued")


def test_author_without_second_step_keeps_the_own_actions(
    client: Client, ada: User, run: Run, settings: Settings
) -> None:
    settings.STAFF_TWO_STEP = True
    User.objects.filter(pk=ada.pk).update(is_superuser=True, is_staff=True)
    assert buttons(client, run) == ["hold", "cancel"]
    ask(client, run, "cancel")
    assert run.state == "cancelled"


def test_a_form_from_elsewhere_is_refused(run: Run, ada: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(ada)
    assert strict.post(f"/runs/{run.pk}/ask/cancel/").status_code == 403
    assert runs.Run.objects.get(pk=run.pk).state == "queued"


def test_maintainers_hold_let_go_and_raise_in_the_admin(run: Run, maintainer: User, client: Client) -> None:
    client.force_login(maintainer)

    def act(action: str) -> None:
        answer = client.post("/admin/leaderboard/run/", {"action": action, "_selected_action": [run.pk]})
        assert answer.status_code == 302

    act("hold")
    assert job_of(run).state == Job.State.HELD
    act("let_go")
    assert job_of(run).state == Job.State.QUEUED
    seen = [job_of(run).priority]
    for _ in range(4):
        act("raise_priority")
        seen.append(job_of(run).priority)
    assert seen == [
        Job.Priority.COMMUNITY,
        Job.Priority.MAINTAINER,
        Job.Priority.CONFIRMATION,
        *2 * [Job.Priority.NIGHTLY],
    ]


def test_another_impact_moves_what_waits(run: Run, maintainer: User) -> None:
    run.entry.impact = 7
    run.entry.save()
    assert runs.update_job_impact(run.entry) == 1
    assert job_of(run).impact == 7
