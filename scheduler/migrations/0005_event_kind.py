from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0004_self_tests")]

    operations = [
        migrations.AddField(
            model_name="event",
            name="kind",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Word for listeners, where the target's row says less.",
                max_length=20,
            ),
        ),
    ]
