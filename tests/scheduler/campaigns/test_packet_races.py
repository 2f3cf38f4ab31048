"""Concurrent volunteers on separate database connections: each packet is assigned and counted once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from scheduler.campaigns.models import Assignment, Contribution, Rephrasing
from tests.support.volunteers import VolunteerAgent, build_document, fill_campaign, make_campaign, start_volunteer

pytestmark = pytest.mark.sql


def test_four_concurrent_volunteers_write_each_packet_once(
    transactional_db: None, settings: Any, tmp_path: Path
) -> None:
    documents = [build_document(number) for number in range(12)]
    campaign = fill_campaign(make_campaign(settings, tmp_path, documents, replication_rate=0.3))
    volunteers = [start_volunteer(f"v{number}") for number in range(4)]
    errors: list[BaseException] = []

    def run_volunteer(volunteer: VolunteerAgent) -> None:
        try:
            for _ in range(50):
                packets = volunteer.take(3)
                if not packets and volunteer.last.done:
                    return
                results = [volunteer.result(packet) for packet in packets]
                if results:
                    volunteer.submit(*results)
                    volunteer.submit(*results)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run_volunteer, args=(volunteer,)) for volunteer in volunteers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert errors == []
    assert set(campaign.packets.values_list("state", flat=True)) == {"done"}
    assert Rephrasing.objects.filter(state="accepted").count() == 2 * campaign.chunk_count
    assert not campaign.packets.filter(replication__in=["planned", "assigned"]).exists()
    assigned = Assignment.objects.filter(purpose="work").values_list("packet", flat=True)
    assert len(assigned) == len(set(assigned)) == campaign.packet_count
    assert sum(Contribution.objects.values_list("packets", flat=True)) == Assignment.objects.count()
