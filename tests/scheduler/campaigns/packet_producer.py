"""Creates packets of a campaign, whose number is the argument, in a process that tests kill."""

from __future__ import annotations

import os
import sys
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")


def main(pk: int) -> None:
    django.setup()
    from django.conf import settings
    from django.db import connections

    from scheduler.campaigns import producer, source_filters

    connections.databases["default"]["NAME"] = os.environ["TEST_DATABASE"]
    settings.REPHRASE_FILES = os.environ["REPHRASE_FILES"]
    producer.ROWS_PER_BATCH = 2
    build_document = source_filters.build_document

    def build_slowly(*args: object) -> object:
        time.sleep(0.01)
        return build_document(*args)  # type: ignore[arg-type]

    source_filters.build_document = build_slowly  # type: ignore[assignment]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    producer.produce_campaign(pk)


if __name__ == "__main__":
    main(int(sys.argv[1]))
