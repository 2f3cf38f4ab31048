from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    """Records of other boards are a page of the documentation."""

    dependencies = [("leaderboard", "0015_github_repository_ids")]
    operations = [migrations.DeleteModel(name="ReportedRecord")]
