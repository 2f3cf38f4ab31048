import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0009_calendar_bounties_notices")]

    operations = [
        migrations.AddField("delivery", "digest", models.CharField(max_length=64, null=True, unique=True)),
        migrations.AddField("delivery", "subject", models.CharField(blank=True, max_length=220)),
        migrations.AddField("delivery", "not_before", models.DateTimeField(default=django.utils.timezone.now)),
        migrations.AddField("delivery", "claimed_until", models.DateTimeField(blank=True, null=True)),
        migrations.AddIndex(
            "delivery", models.Index(fields=["subject", "state"], name="leaderboard_subject_deliv_idx")
        ),
    ]
