from __future__ import annotations

from typing import Any

from django.db import migrations

STATES = {"new": "pending", "done": "done", "ignored": "done", "failed": "failed"}
BATCH = 1000


def copy_deliveries(apps: Any, schema_editor: Any) -> None:
    """Keep the digests of all webhooks, against replays, and process those that are left."""
    delivery, message = (apps.get_model("leaderboard", name) for name in ("Delivery", "OutboxMessage"))
    rows = delivery.objects.exclude(digest=None)
    copies = (
        message(
            kind="github.delivery",
            key=f"github.delivery:{row.digest}",
            payload={"event": row.event, "body": row.payload} if row.payload else {},
            state=STATES[row.state],
            problem=row.problem if row.state == "failed" else "",
            result={"ignored": row.problem} if row.state == "ignored" else {},
            created_at=row.received_at,
            done_at=row.done_at,
        )
        for row in rows.iterator(BATCH)
    )
    message.objects.bulk_create(copies, BATCH)


class Migration(migrations.Migration):
    """Webhooks and preparations of seasons are rows of the outbox. A preparation that runs is requested again."""

    dependencies = [("leaderboard", "0018_one_default_track")]
    operations = [
        migrations.RunPython(copy_deliveries, migrations.RunPython.noop),
        migrations.DeleteModel(name="Delivery"),
        migrations.DeleteModel(name="SeasonPreparation"),
    ]
