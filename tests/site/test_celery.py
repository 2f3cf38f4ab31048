"""Celery's periodic tasks."""

from __future__ import annotations

import json
import subprocess
import sys

from dailytrain import schedule
from tests.support.paths import REPOSITORY

LIST_TASKS = """
import json
from dailytrain.celery import app
app.loader.import_default_modules()
print(json.dumps(list(app.tasks)))
"""


def test_scheduled_tasks_are_registered_in_a_new_worker() -> None:
    # A new process: other tests have imported the modules of the tasks.
    done = subprocess.run(
        [sys.executable, "-c", LIST_TASKS], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    scheduled = {task for task, _ in (*schedule.INTERVAL_TASKS.values(), *schedule.CRON_TASKS.values())}
    assert scheduled <= set(json.loads(done.stdout.splitlines()[-1]))
