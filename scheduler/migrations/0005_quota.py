from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduler', '0004_sponsors'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='quota',
            field=models.PositiveIntegerField(default=1024),
        ),
    ]
