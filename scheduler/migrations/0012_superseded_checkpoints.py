from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0011_forget_texts")]

    operations = [
        migrations.AddField("checkpoint", "files_deleted_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("lease", "limit_exceeded", models.BooleanField(default=False)),
    ]
