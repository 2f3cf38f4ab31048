"""`dailytrain sweep SPACE.toml --server URL`: each ablation is an entry of a site, which trains and compares it.

The track sets budget, seeds and ladder, and its baseline stands for [base]. A request for a known commit and
configuration returns the run that exists, so the same command later prints what has been measured since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.cli.site_api import SiteApi
from trainer.cli.submit import find_commit, find_repository
from trainer.errors import ExitCode
from trainer.trials.plan import BASELINE
from trainer.trials.sweep_space import SweepError, SweepSpace

COMPARED_RUNS = 10  # that the site's comparison page shows
IGNORED = (
    "ignored, since the site's track decides: budget, rungs, seeds, score, "
    "--axis, --corpus, --tokenizer, --dataset, --jobs, --out"
)


def run_at_site(space: SweepSpace, options: argparse.Namespace) -> int:
    """Request the ablations and print their states and multipliers. Raise `UserError` for a refusal."""
    if space.search:
        raise SweepError("a site runs ablations only: leave out search and [space]")
    if space.base:
        raise SweepError("the track's baseline stands for [base]: leave it out, or name its options in each ablation")
    api = SiteApi(options.server, options.token)
    api.check_token()
    commit = {"repository": find_repository(options.repository), "sha": find_commit(), "track": options.track}
    replies = {
        name: api.post("runs", {**commit, **describe_entry(options.space.stem, name, ablation)})
        for name, ablation in space.ablations.items()
    }
    rows = [build_row(name, reply, api.get(f"entries/{reply['entry']}")) for name, reply in replies.items()]
    pages = list_comparison_pages(options.server, [row["run"] for row in rows])
    sys.stderr.write(f"{IGNORED}\n")
    if options.json:
        sys.stdout.write(json.dumps({"entries": rows, "comparisons": pages}, indent=2) + "\n")
    else:
        print_rows(rows, pages)
    return ExitCode.OK


def describe_entry(sweep: str, name: str, ablation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ablation's part of a run request."""
    changes = dict(ablation)
    architecture, config = changes.pop("arch", BASELINE), nest_options(changes)
    listed = ", ".join(f"{option} {value}" for option, value in ablation.items())
    return {
        "architecture": architecture,
        "title": f"{sweep}: {name}"[:120],
        "hypothesis": f"Ablation of the sweep {sweep}: {listed}."[:4000],
        "config": config,
        "variant": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16],
    }


def nest_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted names as tables: `recipe.schedule.final` becomes `{"recipe": {"schedule": {"final": ...}}}`."""
    config: dict[str, Any] = {}
    for name, value in options.items():
        *tables, field = name.split(".")
        table = config
        for part in tables:
            table = table.setdefault(part, {})
        table[field] = value
    return config


def build_row(name: str, reply: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    standing = entry["standing"] or {}
    return {
        "name": name,
        "entry": reply["entry"],
        "run": reply["run"],
        "state": reply["state"],
        "reason": reply["reason"],
        "page": reply["page"],
        **{field: standing.get(field) for field in ("cm", "low", "high", "verdict")},
    }


def list_comparison_pages(server: str, runs: Sequence[int]) -> list[str]:
    """Return addresses of the site's comparison, each of as many runs as it shows."""
    parts = [runs[start : start + COMPARED_RUNS] for start in range(0, len(runs), COMPARED_RUNS)]
    return [f"{server.rstrip('/')}/compare/?runs={','.join(map(str, part))}" for part in parts]


def print_rows(rows: Sequence[Mapping[str, Any]], pages: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "ablation", "state", "multiplier", "95 % interval", "verdict"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        multiplier = "" if row["cm"] is None else f"{row['cm']:.3f}"
        interval = "" if row["low"] is None or row["high"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        cells = (str(row["run"]), row["name"], row["state"], multiplier, interval, row["verdict"] or row["reason"])
        table.add_row(*map(Text, cells))
    console = Console()
    console.print(table)
    for page in pages:
        console.print(Text(page), soft_wrap=True)
