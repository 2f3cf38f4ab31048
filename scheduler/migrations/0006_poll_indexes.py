from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0005_quota'),
    ]

    operations = [
        migrations.AlterField(
            model_name='lease',
            name='expires_at',
            field=models.DateTimeField(),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['author', 'expected_seconds', 'queued_at'], name='waiting_jobs_of_author'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(condition=models.Q(('state', 'active')), fields=['expires_at'], name='active_leases_by_end'),
        ),
        migrations.AddIndex(
            model_name='lease',
            index=models.Index(fields=['started_at'], name='leases_by_start'),
        ),
    ]
