from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('leaderboard', '0004_flops_void'),
    ]

    operations = [
        migrations.AddField(
            model_name='track',
            name='kind',
            field=models.CharField(
                choices=[('competition', 'Competition'), ('community', 'Community'), ('playground', 'Playground')],
                default='competition',
                max_length=12,
            ),
        ),
        migrations.AddField(
            model_name='track',
            name='needs_memory_bytes',
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='track',
            name='trial',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
