"""Generate the reference pages of settings, configuration, endpoints, faults and states of runs:
`python -m docs.generate`.

`trainer.cli.reference` generates the page of commands. Tests compare all of them with the code.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db.models import TextChoices

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
SETTINGS = ROOT / "dailytrain" / "settings.py"
READERS = {"read_text", "read_boolean", "read_integer", "read_number", "read_words", "read_networks"}


def build_settings_page() -> str:
    """Return a table for each section of settings.py: variables, defaults, and the comments above them."""
    page = """# Settings

Set these environment variables for the web process, the worker and beat. Each variable can also be a file:
`SECRET_KEY_FILE=/run/secret` sets `SECRET_KEY`. An invalid value stops the start with an error, and
`python manage.py check --deploy` warns of an unsafe configuration.
"""
    section = None
    for title, name, default, meaning in iterate_settings(SETTINGS.read_text()):
        if title != section:
            section = title
            page += f"\n## {title[0].upper()}{title[1:]}\n\n|variable|default|meaning|\n|---|---|---|\n"
        page += f"|`{name}`|{default}|{meaning}|\n"
    return page


def iterate_settings(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield section, variable, default and meaning of each environment variable that settings.py reads."""
    lines, seen = source.splitlines(), set[str]()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef):
            continue
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in READERS:
                name, *default = call.args
                if isinstance(name, ast.Constant) and name.value not in seen:
                    seen.add(str(name.value))
                    yield (
                        find_section(lines, statement.lineno),
                        str(name.value),
                        describe_default(default),
                        find_comment(lines, call.lineno) or find_comment(lines, statement.lineno),
                    )


def find_section(lines: list[str], number: int) -> str:
    titles = [match[1] for line in lines[:number] if (match := re.match(r"# --- ([^(]+?)( \(.*\))? -", line))]
    return titles[-1] if titles else "basics"


def find_comment(lines: list[str], number: int) -> str:
    """Return the comment above a line, as a table's cell."""
    found: list[str] = []
    while (line := lines[number - 2].strip()).startswith("#") and not line.startswith("# ---"):
        found.insert(0, line.removeprefix("#").strip())
        number -= 1
    return " ".join(found).replace("|", "\\|")


def describe_default(arguments: list[ast.expr]) -> str:
    if not arguments:
        return ""
    value = arguments[0]
    if isinstance(value, ast.Constant):
        return f"`{value.value}`"
    text = ast.unparse(value.args[0] if isinstance(value, ast.Call) and ast.unparse(value.func) == "str" else value)
    return f"`{text}`"


def build_configuration_page() -> str:
    """Return the table of the fields of `dailytrain train`, from its parser."""
    from trainer.cli import reference
    from trainer.cli.main import COMMANDS

    page = """# Configuration of a training run

Give these fields to `dailytrain train` as flags, or in a TOML or JSON file with `--config`, where a dot begins a table.
Flags override the file, the file overrides a preset (`dailytrain presets`). `config` in the description of a pull
request takes the sections `model`, `recipe` and `train`. "Computed" means that the run chooses and records a value.

|field|value|meaning|
|---|---|---|
"""
    parser = reference.find_parser(dict(reference.iterate_commands(COMMANDS))["train"])
    for action in reference.list_flags(parser, with_fields=True):
        value, meaning = reference.describe_value(action), reference.describe_meaning(action)
        page += f"|{reference.describe_flag(action)}|{value}|{meaning}|\n"
    return page


def build_endpoints_page() -> str:
    """Return the table of the public API's endpoints, from its OpenAPI document."""
    set_up_django()
    from leaderboard.api import api

    page = """# Endpoints of the API

[The API](api.md) explains pages, ETags and limits. `/api/v1/docs` on every site shows all parameters and responses.

|method|address|parameters|answer|
|---|---|---|---|
"""
    for path, operations in api.get_openapi_schema()["paths"].items():
        for method, operation in operations.items():
            queries = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
            text = (operation.get("description") or f"{operation['summary']}.").split("\n\n")[0]
            cells = (method.upper(), f"`{path}`", ", ".join(f"`{name}`" for name in queries), " ".join(text.split()))
            page += f"|{'|'.join(cells)}|\n"
    return page


def build_run_states_page() -> str:
    """Return the tables of the events of runs, jobs, leases and trust, from their state machines."""
    set_up_django()
    from leaderboard.rankings.trust import TRUST_TRANSITIONS
    from leaderboard.run_states import TRANSITIONS, WHAT_JOBS_DO
    from scheduler.leases import LEASE_ENDS
    from scheduler.transitions import JOB_TRANSITIONS

    page = """# States of a run

![The states of a run and the events between them](run-states.svg)

Each line is an event, the states in which it can happen, and the state that it leads to. Any other event is refused and
changes nothing. A run and its jobs change together (`leaderboard/run_states.py`).

|event|when|from|to|its jobs|
|---|---|---|---|---|
"""
    for event, step in TRANSITIONS.items():
        jobs = WHAT_JOBS_DO[step.change_jobs] or (
            f"a {step.new_job.replace('_', ' ')} is queued" if step.new_job else ""
        )
        page += build_event_row(event, step.since, step.to, jobs)
    page += EVENT_TABLE.format("States of a job", "One node does a job at a time (`scheduler/transitions.py`).")
    for job_event, job_step in JOB_TRANSITIONS.items():
        page += build_event_row(job_event, job_step.since, job_step.to)
    page += """
## Ends of a lease

The node that does a job holds its lease, active until it ends once (`scheduler/leases.py`).

|what the node reports|to|
|---|---|
"""
    for outcome, state in LEASE_ENDS.items():
        page += f"|{outcome or 'nothing, until the lease expires'}|{state.value}|\n"
    page += EVENT_TABLE.format("Trust in a run", "It is apart from the state (`leaderboard/rankings/trust.py`).")
    for trust_event, (since, to) in TRUST_TRANSITIONS.items():
        page += build_event_row(trust_event, since, to)
    return page


EVENT_TABLE = """
## {}

{}

|event|when|from|to|
|---|---|---|---|
"""


def build_event_row(event: TextChoices, since: Iterable[TextChoices], to: TextChoices, *more: str) -> str:
    cells = (event.value, event.label, ", ".join(state.value for state in since), to.value, *more)
    return f"|{'|'.join(cells)}|\n"


def build_faults_page() -> str:
    """Return the tables of whose fault a failure is and of what follows."""
    set_up_django()
    from scheduler.failure_reports import CONSEQUENCES
    from trainer.errors import FAILURES

    page = """# Faults

What each failure is (`trainer/errors.py`). No code of an entry runs with its graph, so only the first three lines are
its fault. The Python of an open entry can cause more.

|failure|fault in the run of a graph|with an entry's Python|
|---|---|---|
"""
    for failure in FAILURES:
        page += f"|{failure.label}|{failure.graph}|{failure.python}|\n"
    page += """
## What follows

A claim counts once a node of another owner, or a trusted one, says the same. Until then the job goes on elsewhere,
without the node and its owner (`scheduler/failure_reports.py`). If a vetted node goes on past that step, the claim
becomes a fault of the machine.

|fault|claim|the job|the node|the entry|
|---|---|---|---|---|
"""
    for fault, follows in CONSEQUENCES.items():
        page += f"|{fault.value}|{'yes' if follows.claim else ''}|{follows.job}|{follows.node}|{follows.entry}|\n"
    return page


def set_up_django() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    import django

    django.setup()


STATE_POSITIONS = {
    "waiting": (80, 90), "queued": (280, 90), "training": (480, 90), "scoring": (680, 90), "finished": (880, 90),
    "paused": (550, 200), "failed": (380, 310), "cancelled": (80, 310), "stopped": (280, 200),
}  # fmt: skip


def draw_run_states() -> str:
    """Return the drawing of a run's states as SVG. Ends that every unfinished state can have are told in words."""
    from leaderboard.run_states import BEFORE_END, TRANSITIONS

    lines, ends = [], []
    for event, step in TRANSITIONS.items():
        if step.since == BEFORE_END:
            ends.append(f"{event.value} (then {step.to.value})")
            continue
        for state in step.since:
            (x1, y1), (x2, y2) = STATE_POSITIONS[state.value], STATE_POSITIONS[step.to.value]
            bow = 0.2 if abs(x2 - x1) <= 200 else 0.32  # to the left of the arrow, so that two ways do not meet
            bow = -bow if x2 > x1 and y2 < y1 else bow
            x, y = (x1 + x2) / 2 + bow * (y2 - y1), (y1 + y2) / 2 - bow * (x2 - x1)
            lines.append(f'<path d="M{x1} {y1}Q{x:.0f} {y:.0f} {x2} {y2}" marker-end="url(#arrow)"/>')
            middle = f'x="{(x1 + x2) / 4 + x / 2:.0f}" y="{(y1 + y2) / 4 + y / 2 - 4:.0f}"'
            lines.append(f'<text class="event" {middle}>{event.value}</text>')
    for name, (x, y) in STATE_POSITIONS.items():
        lines.append(
            f'<rect x="{x - 48}" y="{y - 16}" width="96" height="32" rx="6"/><text x="{x}" y="{y + 5}">{name}</text>'
        )
    lines.append(f'<text class="event" x="480" y="385">always possible before the end: {", ".join(ends)}</text>')
    style = (
        "text{font:14px sans-serif;text-anchor:middle;fill:#222}.event{font-size:12px;fill:#a33}"
        "rect{fill:#f4f5f7;stroke:#555}path{fill:none;stroke:#888}"
    )
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="56" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<polygon points="0,0 8,4 0,8" fill="#888"/></marker>'
    )
    parts = ["<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 960 400'>", f"<style>{style}</style>{arrow}", *lines]
    return "\n".join([*parts, "</svg>", ""])


PAGES: dict[str, Callable[[], str]] = {
    "settings": build_settings_page,
    "configuration": build_configuration_page,
    "endpoints": build_endpoints_page,
    "faults": build_faults_page,
    "run-states": build_run_states_page,
}


def main() -> None:
    for name, build in PAGES.items():
        (REFERENCE / f"{name}.md").write_text(build(), encoding="utf-8")
    (REFERENCE / "run-states.svg").write_text(draw_run_states(), encoding="utf-8")


if __name__ == "__main__":
    main()
