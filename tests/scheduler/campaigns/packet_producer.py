"""Creates packets or shards of a campaign, in a process that tests kill.

`python -m tests.scheduler.campaigns.packet_producer produce 7`
"""

from __future__ import annotations

import os
import sys
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")


def main(action: str, pk: int) -> None:
    django.setup()
    from django.conf import settings
    from django.db import connections

    from scheduler.campaigns import producer, shards, source_filters

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
    if action == "produce":
        producer.produce_campaign(pk)
    else:
        shards.update_campaign_shards(pk)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
