from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("leaderboard", "0013_confirmations")]

    operations = [migrations.RemoveField(model_name="entry", name="confirmation")]
