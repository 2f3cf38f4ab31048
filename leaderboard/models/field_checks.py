"""Checks of the fields of seasons and tracks that a form accepts as free text or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.core.exceptions import ValidationError

from scheduler import windows
from trainer.errors import UserError
from trainer.protocol.files import HOST_PATTERN, MAX_HOSTS

MOST_SEEDS = 20
RUNGS = (1 / 64, 64)
"""Smallest and largest rung, as parts of the budget."""
SWARM_SIZES = {"stages", "workers", "minimum"}
MOST_SEATS = 64


def check_field(field: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except UserError as error:
        raise ValidationError({field: str(error)}) from error


def known_zone(name: str) -> None:
    if windows.parse_time_zone(name) is None:
        raise ValidationError(f"{name} is no time zone; try Europe/Berlin or UTC.")


def check_hosts(hosts: object) -> None:
    names = hosts if isinstance(hosts, list) and len(hosts) <= MAX_HOSTS else [None]
    if not all(isinstance(name, str) and re.fullmatch(HOST_PATTERN, name) for name in names):
        raise ValidationError(f'Up to {MAX_HOSTS} names of hosts, without addresses or ports: ["huggingface.co"].')


def check_ladder(ladder: object) -> None:
    """Raise ValueError unless this is {} or {"rungs": [...], "seeds": n}."""
    if ladder == {}:
        return
    if not isinstance(ladder, dict) or set(ladder) != {"rungs", "seeds"}:
        raise ValueError('ladder: it is {"rungs": [0.125, 0.25, 0.5, 1, 2], "seeds": 3}, or empty')
    rungs, seeds = ladder["rungs"], ladder["seeds"]
    if not isinstance(rungs, list) or not all(is_number(rung) and RUNGS[0] <= rung <= RUNGS[1] for rung in rungs):
        raise ValueError(f"ladder: rungs are parts of the budget, from 1/64 to {RUNGS[1]}")
    if len(set(rungs)) != len(rungs) or 1 not in rungs:
        raise ValueError("ladder: each rung comes once, and 1 (the whole budget) is one of them")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(f"ladder: seeds is a whole number from 1 to {MOST_SEEDS}")


def check_trial(trial: object, ladder: object) -> None:
    """Raise ValueError unless this is {}, or {"part": p, "config": {...}} without a ladder."""
    if trial == {}:
        return
    if not isinstance(trial, dict) or not {"part"} <= set(trial) <= {"part", "config"}:
        raise ValueError('trial: it is {"part": 0.1, "config": {"model": {"depth": 4}}}, or empty')
    if not is_number(trial["part"]) or not RUNGS[0] <= trial["part"] < 1:
        raise ValueError("trial: part is a part of the budget, from 1/64 to less than 1")
    if not isinstance(trial.get("config", {}), dict):
        raise ValueError("trial: config is a table of names and values")
    if ladder:
        raise ValueError("trial: smaller models would stand on the ladder beside others; a track has one or the other")


def check_swarm_sizes(swarm: object) -> None:
    """Raise ValueError unless this has valid sizes of a swarm."""
    if not isinstance(swarm, dict) or not {"stages", "workers"} <= set(swarm) <= {*SWARM_SIZES, "patience"}:
        raise ValueError('swarm: it is {"stages": 2, "workers": 2, "minimum": 1, "patience": 30}')
    for name in SWARM_SIZES & swarm.keys():
        if not isinstance(swarm[name], int) or isinstance(swarm[name], bool) or not 1 <= swarm[name] <= MOST_SEATS:
            raise ValueError(f"swarm: {name} is a whole number from 1 to {MOST_SEATS}")
    if not is_number(swarm.get("patience", 30)) or not 0 < swarm.get("patience", 30) <= 3600:
        raise ValueError("swarm: patience is in seconds, up to 3600")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
