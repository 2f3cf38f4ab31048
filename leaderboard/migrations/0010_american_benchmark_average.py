from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

OLD, NEW = "average/normalised", "average/normalized"


def rename(apps: Apps, old: str, new: str) -> None:
    apps.get_model("leaderboard", "Score").objects.filter(name=old).update(name=new)


def forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    rename(apps, OLD, NEW)


def backwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    rename(apps, NEW, OLD)


class Migration(migrations.Migration):
    """Rename the average of benchmarks, as its measurements are now sent."""

    dependencies = [("leaderboard", "0009_entry_variant")]
    operations = [migrations.RunPython(forwards, backwards)]
