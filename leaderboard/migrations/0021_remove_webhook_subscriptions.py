from django.db import migrations, models


def delete_webhooks(apps, schema_editor):
    apps.get_model("leaderboard", "Subscription").objects.filter(kind="webhook").delete()


class Migration(migrations.Migration):
    """Programs read the API and the feeds."""

    dependencies = [("leaderboard", "0020_test_secrets")]

    operations = [
        migrations.RunPython(delete_webhooks, migrations.RunPython.noop),
        migrations.RemoveField(model_name="subscription", name="secret"),
        migrations.AlterField(
            model_name="subscription",
            name="kind",
            field=models.CharField(
                choices=[("discord", "Discord"), ("slack", "Slack"), ("email", "E-mail")], max_length=8
            ),
        ),
    ]
