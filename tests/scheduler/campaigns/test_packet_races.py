"""Several volunteers at the same moment, on connections of their own: nothing is given twice, nothing counts twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from django.db import connection, connections

from scheduler.campaigns.models import Assignment, Contribution, Rephrasing
from tests.support.volunteers import Volunteer, document, make_campaign, produced, sit_down


def test_four_at_once_write_everything_once(transactional_db: None, settings: Any, tmp_path: Path) -> None:
    documents = [document(number) for number in range(12)]
    campaign = produced(make_campaign(settings, tmp_path, documents, replication_rate=0.3))
    volunteers = [sit_down(f"v{number}") for number in range(4)]
    problems: list[BaseException] = []

    def work(volunteer: Volunteer) -> None:
        try:
            for _ in range(50):
                packets = volunteer.take(3)
                if not packets and volunteer.last.done:
                    return
                results = [volunteer.result(packet) for packet in packets]
                if results:
                    volunteer.hand_in(*results)
                    volunteer.hand_in(*results)
        except BaseException as error:
            problems.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(volunteer,)) for volunteer in volunteers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()
    assert problems == []
    assert set(campaign.packets.values_list("state", flat=True)) == {"done"}
    assert Rephrasing.objects.filter(state="accepted").count() == 2 * campaign.chunk_count
    assert not campaign.packets.filter(replication__in=["planned", "assigned"]).exists()
    work_given = Assignment.objects.filter(purpose="work").values_list("packet", flat=True)
    assert len(work_given) == len(set(work_given)) == campaign.packet_count
    assert sum(Contribution.objects.values_list("packets", flat=True)) == Assignment.objects.count()
