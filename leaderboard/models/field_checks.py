"""Checks of the fields of seasons and tracks that a form accepts as free text or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django.core.exceptions import ValidationError

from scheduler import windows
from trainer.accounting.budget import Budget
from trainer.errors import UserError

if TYPE_CHECKING:
    from leaderboard.models.tracks import Track

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


def check_swarm(track: Track) -> None:
    """Raise ValueError unless a swarm's track has valid sizes, and another track has none."""
    if track.kind != track.Kind.SWARM:
        if track.swarm:
            raise ValueError("swarm: only a track of kind swarm has it")
        return
    given = track.swarm
    if not isinstance(given, dict) or not {"stages", "workers"} <= set(given) <= {*SWARM_SIZES, "patience"}:
        raise ValueError('swarm: it is {"stages": 2, "workers": 2, "minimum": 1, "patience": 30}')
    for name in SWARM_SIZES & given.keys():
        if not isinstance(given[name], int) or isinstance(given[name], bool) or not 1 <= given[name] <= MOST_SEATS:
            raise ValueError(f"swarm: {name} is a whole number from 1 to {MOST_SEATS}")
    if not is_number(given.get("patience", 30)) or not 0 < given.get("patience", 30) <= 3600:
        raise ValueError("swarm: patience is in seconds, up to 3600")
    if Budget.parse(track.budget).kind != "steps":
        raise ValueError("swarm: its budget is a number of steps, such as 2000steps")
    if track.ladder or track.trial or track.releases or track.start_run_id:
        raise ValueError("swarm: its track has no ladder, no trial, no releases and starts from scratch")


def check_traced(track: Track) -> None:
    """Raise ValueError if the runs of a traced track could not train a graph."""
    if not track.is_traced:
        return
    train = track.config.get("train", {})
    if track.kind == track.Kind.SWARM or track.start_run_id or track.config.get("devices", 1) != 1:
        raise ValueError("is_traced: a swarm, a start run and several devices need the Python of an architecture")
    if train.get("chunk") or train.get("activation_checkpointing"):
        raise ValueError("is_traced: chunk and activation_checkpointing need the Python of an architecture")


def check_followed(track: Track) -> None:
    """Raise ValueError unless runs of a track that follows releases can start from them, and from nothing else."""
    followed = track.followed_track
    if followed is None:
        return
    name = "fine-tunes the releases of"
    if followed.pk == track.pk or followed.followed_track_id is not None:
        raise ValueError(f"{name}: {followed} fine-tunes releases itself; name a track that trains from scratch")
    if not followed.releases:
        raise ValueError(f"{name}: {followed} has no releases; set them there first, such as every 10 percent")
    if followed.season.tokenizer != track.season.tokenizer:
        raise ValueError(f"{name}: {followed} has another tokenizer, {followed.season.tokenizer}")
    if track.ladder or track.trial or track.nightly or track.monthly or track.start_run_id or track.is_traced:
        raise ValueError(
            f"{name}: such a track has no ladder, trial, nightly or monthly run, starts from no run, and is not traced"
        )
    if track.kind == track.Kind.SWARM:
        raise ValueError(f"{name}: a swarm starts from scratch")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
