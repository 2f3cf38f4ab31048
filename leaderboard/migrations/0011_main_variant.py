from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def change_variant(apps: Apps, old: str, new: str) -> None:
    apps.get_model("leaderboard", "Entry").objects.filter(kind="main", variant=old).update(variant=new)


def forwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    change_variant(apps, "", "main")


def backwards(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    change_variant(apps, "main", "")


class Migration(migrations.Migration):
    """Give main's entries a variant of their own, so that no entry of the same commit takes their place."""

    dependencies = [("leaderboard", "0010_american_benchmark_average")]
    operations = [migrations.RunPython(forwards, backwards)]
