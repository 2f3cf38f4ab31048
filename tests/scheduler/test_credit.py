"""Credit for lent time in H100 hours, added up from leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import credit
from scheduler.models import Lease
from scheduler.sponsors import contributions
from tests.support.pool import Agent, create_job, create_node
from trainer.accounting import peak_flops

H100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", 80e12),
        (RTX, 71e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("", None),
    ],
)
def test_accelerator_is_matched_by_whole_words(name: str, figure: float | None) -> None:
    assert peak_flops.lookup_peak_flops(name) == figure


def test_accelerators_with_same_prefix_are_distinguished() -> None:
    names = list(peak_flops.PEAK_FLOPS)
    assert all(peak_flops.lookup_peak_flops(f"NVIDIA {name}") == peak_flops.PEAK_FLOPS[name] for name in names)


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


@pytest.mark.django_db
def test_credit_of_old_lease_survives_hardware_change() -> None:
    node, token = create_node()
    create_job()
    action = Agent(token).request_action(hardware=build_gpu_hardware(RTX, RTX))
    assert action.lease is not None
    Lease.objects.filter(pk=action.lease.lease).update(seconds=1800)
    node.hardware = {}
    node.save()
    contribution = contributions.sum_leases_by_node(Lease.objects.all())[node.pk]
    assert contribution.gpu_seconds == 3600
    assert contribution.credit_hours == pytest.approx(71 / 989)


def build_gpu_hardware(*names: str) -> Any:
    from tests.support.pool import HARDWARE
    from trainer import protocol

    return HARDWARE.model_copy(update={"gpus": names, "gpu_details": tuple(protocol.Gpu(name=name) for name in names)})


@pytest.mark.django_db
def test_node_without_gpu_earns_cpu_hours() -> None:
    node, token = create_node()
    create_job()
    claimed_job = Agent(token).claim_job()
    claimed_job.send_heartbeat(30)
    contribution = contributions.sum_leases_by_node(Lease.objects.all())[node.pk]
    assert (contribution.cpu_seconds, contribution.gpu_seconds, contribution.credit_hours) == (30, 0, 0)


@pytest.mark.django_db
def test_totals_end_with_the_start_of_an_active_lease() -> None:
    node, token = create_node()
    create_job()
    create_job()
    Agent(token).claim_job().finish("done")
    ended = Lease.objects.get()
    Lease.objects.update(started_at=ended.started_at - timedelta(days=3), ended_at=ended.started_at - timedelta(days=2))
    Agent(token).claim_job()
    active = Lease.objects.held_by(node).get()
    assert contributions.sum_leases_by_node(Lease.objects.all())[node.pk].last == active.started_at
