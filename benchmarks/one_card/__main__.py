"""`python -m benchmarks.one_card`: which nights one card trains in 90 days, how late, and when its ladder is full."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

import django


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_card", description=__doc__)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--moves-a-week", type=int, default=5, choices=range(8), help="days on which main moves")
    parser.add_argument("--seed", type=int, default=1, help="of the times of the interruptions")
    parser.add_argument("--json", action="store_true", help="print the figures only, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse_arguments(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    django.setup()
    from benchmarks.one_card.simulation import simulate

    report = simulate(chosen.days, chosen.moves_a_week, chosen.seed).build_report()
    lines = (f"{name:20} {value}" for name, value in report.items())
    sys.stdout.write(f"{json.dumps(report)}\n" if chosen.json else "".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
