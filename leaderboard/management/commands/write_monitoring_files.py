"""Write the alert rules for Prometheus and the dashboard for Grafana, which follow from the metrics of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils import timezone

from leaderboard.monitoring.alerts import build_alert_rules, build_dashboard


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        for path, text in build_files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            self.stdout.write(f"{path} written.")


def build_files() -> dict[Path, str]:
    """Return the content of each file by its path."""
    folder = Path(settings.BASE_DIR) / "docker"
    return {
        folder / "prometheus" / "alerts.yml": yaml.safe_dump(build_alert_rules(), sort_keys=False),
        folder / "grafana" / "dashboard.json": json.dumps(build_dashboard(timezone.now()), indent=1) + "\n",
    }
