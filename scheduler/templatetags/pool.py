"""Template filters of the sponsors' pages: hours, windows and form fields."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, time

from django import template
from django.forms import BoundField
from django.utils.safestring import SafeString

from scheduler import node_health
from scheduler.models import Node
from scheduler.release.wheel import get_requirement
from scheduler.sponsors.contributions import LentTotals
from scheduler.sponsors.forms import WEEKDAYS

register = template.Library()

SPACE = "\u00a0"
PARTS = {"days": "Days", "from": "From", "to": "To"}
EXAMPLES = {"login": "ada", "username": "ada", "code": "123456"}
"""Placeholders of the fields of sign-in, by name."""


def number(value: float) -> str:
    """Format with two significant digits and at most one decimal from 1 on: 0.012, 3.1, 1,234."""
    if not value:
        return "0"
    return f"{value:.2g}" if value < 0.995 else f"{value:,.{1 if value < 99.95 else 0}f}"


@register.inclusion_tag("scheduler/parts/install.html")
def install_command(*extras: str) -> dict[str, str]:
    """Show the command that installs this site's package with these extras."""
    return {"requirement": get_requirement(*extras)}


@register.filter
def credit(hours: float) -> str:
    return f"{number(hours)}{SPACE}h"


@register.filter
def lent(given: LentTotals) -> str:
    """Format lent time: 12.3 GPU-hours, 34 GPU-minutes; CPU-hours without any GPU."""
    cpu = given.cpu_seconds and not given.gpu_seconds
    seconds, what = (given.cpu_seconds, "CPU") if cpu else (given.gpu_seconds, "GPU")
    if not seconds:
        return f"0{SPACE}{what}-hours"
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{number(seconds / size)}{SPACE}{what}-{unit}"
    return f"{seconds:.0f}{SPACE}{what}-seconds"


@register.filter
def gigabytes(size: int) -> str:
    return f"{size / 1e9:,.0f}"


@register.filter
def machine(node: Node) -> list[tuple[str, str]]:
    """Return the known facts about the node's hardware and health as (name, value) rows."""
    facts, health = node.hardware, node.health
    cards = Counter(
        f"{gpu.get('name', 'GPU')}, {(gpu.get('memory_bytes') or 0) / 2**30:.0f}{SPACE}GB"
        for gpu in facts.get("gpu_details") or ()
    )
    unusable = facts.get("unusable_gpus") or ()
    drivers = sorted({gpu["driver"] for gpu in facts.get("gpu_details") or () if gpu.get("driver")})
    speed, disk, heat = (
        facts.get("network_bytes_per_second"), facts.get("disk_free_bytes"), health.get("temperature_celsius")
    )  # fmt: skip
    trouble = [
        health.get("trouble", ""),
        "throttled by temperature or power" if health.get("throttled") else "",
        "a GPU is idle while a job runs" if health.get("idle_gpu") else "",
    ]
    used, probe = health.get("gpu_used_bytes"), health.get("probe") or {}
    lines = [
        *(("GPU", f"{count} × {card}" if count > 1 else card) for card, count in cards.items()),
        *(("Unusable GPU", f"{gpu['name']}. {gpu['problem']}") for gpu in unusable),
        ("GPU", "none found" if "hostname" in facts and not (cards or unusable) else ""),
        ("Driver", ", ".join([*drivers, *([f"CUDA {facts['cuda']}"] if facts.get("cuda") else [])])),
        ("Free disk", f"{gigabytes(disk)}{SPACE}GB" if disk else ""),
        ("Network", f"{speed * 8 / 1e6:,.0f}{SPACE}Mbit/s" if speed else ""),
        ("Temperature", f"{heat:.0f}{SPACE}°C" if heat is not None else ""),
        ("GPU memory in use", f"{used / 2**30:.1f}{SPACE}GB" if used is not None else ""),
        ("Health", "; ".join(filter(None, trouble))),
        ("Last probe", f"{probe['tokens_per_second']:,.0f} tokens/s" if probe else ""),
        ("Sandbox", (facts.get("sandboxes") or [""])[0]),
    ]
    return [(name, value) for name, value in lines if value]


@register.filter
def state_word(node: Node) -> str:
    """Return the node's state, with the two that follow from its token."""
    if node.token_hash is None and node.state != Node.State.BANNED:
        return "revoked" if node.last_seen else "expected"
    return node.get_state_display().lower()


@register.filter
def failure(node: Node) -> str:
    return node_health.describe_failure(node)


@register.filter
def parse_time(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


@register.filter
def window(stretch: tuple[list[int], time, time]) -> str:
    """Format a window: Mo–Fr 19:00 to 07:00."""
    days, start, end = stretch
    row = len(days) > 2 and days == list(range(days[0], days[-1] + 1))
    named = f"{WEEKDAYS[days[0]]}–{WEEKDAYS[days[-1]]}" if row else ", ".join(WEEKDAYS[day] for day in days)
    return f"{named}, all day" if start == end == time() else f"{named} {start:%H:%M} to {end:%H:%M}"


@register.filter
def first_input(field: BoundField) -> str:
    """Return the id of the field's first input."""
    return field.id_for_label or f"{field.auto_id}_0"


@register.filter
def plain_label(field: BoundField) -> str:
    """Return the field's label; for those of a window its part and line."""
    part, _, row = field.name.partition("_")
    return f"{PARTS[part]}, line {int(row) + 1}" if part in PARTS and row.isdigit() else str(field.label)


@register.filter
def with_example(field: BoundField) -> SafeString:
    """Render a field of sign-in with an example as its placeholder."""
    return field.as_widget(attrs={"placeholder": EXAMPLES.get(field.name, "")})
