"""Credit for lent time in H100 hours, added up from leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import credit
from scheduler.models import Lease, Node
from scheduler.sponsors import contributions
from tests.support.pool import Agent, create_job
from trainer import protocol
from trainer.accounting import peak_flops

H100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", 80e12),
        (RTX, 71e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("", None),
        *((f"NVIDIA {name}", figure) for name, figure in peak_flops.PEAK_FLOPS.items()),
    ],
)
def test_accelerator_is_matched_by_whole_words(name: str, figure: float | None) -> None:
    assert peak_flops.lookup_peak_flops(name) == figure


@pytest.mark.parametrize(
    ("hardware", "slot", "slots", "expected"),
    [
        ({}, 0, 1, (0, "")),
        ({"gpus": [H100, H100]}, 0, 1, (2, H100)),
        ({"gpus": ["x"], "gpu_details": [{"name": H100}, {"name": RTX}]}, 0, 1, (2, RTX)),
        ({"gpu_details": [{"name": H100}, {"name": RTX}]}, 0, 2, (1, H100)),
        ({"gpu_details": [{"name": H100}, {"name": RTX}]}, 1, 2, (1, RTX)),
        ({"gpu_details": [{"name": H100}]}, 1, 2, (0, "")),
    ],
)
def test_slot_with_mixed_gpus_has_speed_of_slowest(
    hardware: dict[str, Any], slot: int, slots: int, expected: tuple[int, str]
) -> None:
    assert credit.describe_slot_gpus(hardware, slot, slots) == expected


def test_credit_is_summed_from_leases_by_their_hardware(agent: Agent) -> None:
    """Totals end with the start of an active lease, and GPUs that are sold keep their hours."""
    hardware = agent.hardware
    gpus = tuple(protocol.Gpu(name=RTX) for _ in range(2))
    agent.hardware = hardware.model_copy(update={"gpus": (RTX, RTX), "gpu_details": gpus})
    for seconds in (1800, 30):
        create_job()
        claimed_job = agent.claim_job()
        started = claimed_job.row.started_at - timedelta(days=1)
        claimed_job.finish("done")
        Lease.objects.filter(pk=claimed_job.row.pk).update(seconds=seconds, started_at=started, ended_at=started)
        agent.hardware = hardware
        Node.objects.update(last_seen=None)
    create_job()
    active = agent.claim_job().row
    total = contributions.sum_leases_by_node(Lease.objects.all())[active.node_id]
    assert (total.gpu_seconds, total.cpu_seconds, total.last) == (3600, 30, active.started_at)
    assert total.credit_hours == pytest.approx(71 / 989)
