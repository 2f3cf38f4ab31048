from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('leaderboard', '0003_releases'),
    ]

    operations = [
        migrations.RenameField(model_name='tracedgraph', old_name='reference', new_name='baseline_graph'),
    ]
