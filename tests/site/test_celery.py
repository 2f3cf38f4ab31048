"""Celery's periodic tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django_celery_beat.models import PeriodicTask

from dailytrain import schedule
from dailytrain.celery import app
from tests.support.clean_environment import run_python

pytestmark = pytest.mark.processes

LIST_TASKS = """
import json
from dailytrain.celery import app
app.loader.import_default_modules()
print(json.dumps(list(app.tasks)))
"""


@pytest.mark.slow
def test_scheduled_tasks_are_registered_in_a_new_worker(tmp_path: Path) -> None:
    # A new process: other tests have imported the modules of the tasks.
    done = run_python(tmp_path, "-c", LIST_TASKS)
    scheduled = {task for task, _ in (*schedule.INTERVAL_TASKS.values(), *schedule.CRON_TASKS.values())}
    assert scheduled <= set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.django_db
def test_schedule_after_an_upgrade_names_only_tasks_that_exist() -> None:
    schedule.install()
    renamed = PeriodicTask.objects.get(name="Store configurations of runs")
    PeriodicTask.objects.filter(pk=renamed.pk).update(
        name="Queue score jobs", task="leaderboard.tasks.queue_scores", expire_seconds=None, enabled=False
    )
    releases = PeriodicTask.objects.get(name="Publish and score releases")
    earlier = {"name": "Release weights of long runs", "task": "leaderboard.tasks.publish_last_releases"}
    PeriodicTask.objects.filter(pk=releases.pk).update(**earlier, enabled=False)
    PeriodicTask.objects.create(name="Old", task="scheduler.tasks.gone", interval=renamed.interval)
    PeriodicTask.objects.create(name="Old of the site", task="dailytrain.tasks.gone", interval=renamed.interval)
    PeriodicTask.objects.create(name="Of the admin", task="celery.backend_cleanup", interval=renamed.interval)

    schedule.install()

    assert set(PeriodicTask.objects.exclude(name="Of the admin").values_list("task", flat=True)) <= set(app.tasks)
    assert PeriodicTask.objects.filter(name="Of the admin").exists()
    releases.refresh_from_db()
    assert (releases.name, releases.task, releases.enabled) == (
        "Publish and score releases", "leaderboard.tasks.publish_and_score_releases", False,
    )  # fmt: skip
    renamed.refresh_from_db()
    assert (renamed.name, renamed.task, renamed.enabled) == (
        "Store configurations of runs", "leaderboard.tasks.store_configurations", False,
    )  # fmt: skip


@pytest.mark.django_db
def test_every_scheduled_task_expires_before_it_piles_up() -> None:
    schedule.install()
    PeriodicTask.objects.filter(name="Expire leases").update(expire_seconds=None)
    PeriodicTask.objects.filter(name="Nightly run").update(expire_seconds=900)
    schedule.install()
    expiry = dict(PeriodicTask.objects.values_list("name", "expire_seconds"))
    assert expiry["Nightly run"] == 900, "the admin has set it"
    assert {expiry[name] for name in ("Expire leases", "Handle events")} == {schedule.MIN_EXPIRE_SECONDS}
    assert all(expiry[name] >= seconds for name, (_, seconds) in schedule.INTERVAL_TASKS.items())
    assert expiry["Monthly run"] == schedule.CRON_EXPIRE_SECONDS


def test_task_of_hours_waits_in_a_queue_of_its_own() -> None:
    short = ("leaderboard.tasks.process_message", "leaderboard.tasks.nightly", "scheduler.tasks.expire_leases")
    long = ("leaderboard.tasks.process_long_message", "leaderboard.tasks.process_due_long_messages")
    with app.connection("memory://broker") as connection:
        for task in (*short, *long):
            app.send_task(task, connection=connection)
        queues = {name: queue(connection.default_channel) for name, queue in app.amqp.queues.items()}
        waiting = {}
        for name, queue in queues.items():
            messages = iter(lambda queue=queue: queue.get(no_ack=True), None)  # type: ignore[misc]
            waiting[name] = {message.headers["task"] for message in messages}
    assert waiting == {"short": set(short), "long": set(long)}
