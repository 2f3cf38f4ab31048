from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0006_poll_indexes'),
    ]

    operations = [
        # What has happened before there was anybody to tell is old news.
        migrations.AddField(
            model_name='event',
            name='announced',
            field=models.BooleanField(default=True),
        ),
        migrations.AlterField(
            model_name='event',
            name='announced',
            field=models.BooleanField(default=False),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('announced', False)), fields=['id'], name='events_to_announce'),
        ),
        migrations.AddField(
            model_name='job',
            name='not_before',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='not_after',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
