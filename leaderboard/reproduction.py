"""What it takes to train a run again on any machine: the lines to type, the same as a file, and what it ran on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from leaderboard.models import Run
from leaderboard.runs import get_configuration

BARE = re.compile(r"[A-Za-z0-9_-]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
VERSION = re.compile(r"\d+(\.\d+)+\S*")


def build_recipe(run: Run) -> dict[str, Any]:
    """Return what `dailytrain train` has to be told, tables in tables. The run has its entry, track and season."""
    season = run.season
    text = {"corpus": season.corpus, "tokenizer": season.tokenizer, "limit_bytes": season.limit_bytes}
    start: dict[str, Any] = {"from": f"run-{run.start_run_id}"} if run.start_run_id else {}
    if run.start_checkpoint:
        start["step"] = run.start_checkpoint.step
    return {**get_configuration(run), **{name: value for name, value in text.items() if value is not None}, **start}


def commands(run: Run) -> str:
    """Return the lines that train this run again."""
    entry = run.entry
    get = [f"git clone {shlex.quote(entry.repository)} dailytrain && cd dailytrain"] if entry.public_repository else []
    words = [f"  --{name.replace('_', '-')} {shlex.quote(value)}" for name, value in flags(build_recipe(run))]
    train = " \\\n".join(["dailytrain train", *words, f"  --out run-{run.pk}"])
    hash_ = dataset_hash(run)
    same = [f"# dataset hash: {hash_}"] if hash_ else []
    return "\n".join([*get, f"git checkout {entry.sha}", train, *same])


def flags(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values; a model's own field may be a table, and is one value then."""
    for name, value in table.items():
        if value is None:
            continue
        if isinstance(value, dict) and value and before != "model.":
            yield from flags(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value)


def dataset_hash(run: Run) -> str:
    said = run.config.get("dataset")
    return str((said.get("hash") if isinstance(said, dict) else "") or run.season.dataset_hash)


def write_toml(run: Run) -> str:
    """Return the recipe as a file for `dailytrain train --config`."""
    entry = run.entry
    head = [
        f"# The Daily Train, run {run.pk}: {CONTROL.sub(' ', entry.title)}",
        f"# commit {entry.sha}",
        f"# dataset hash {dataset_hash(run)}",
        f"# dailytrain train --config run-{run.pk}.toml --out run-{run.pk}",
        "",
    ]
    return "\n".join([*head, *tables(build_recipe(run))]) + "\n"


def tables(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a TOML table: first its own values, then the tables in it."""
    if name:
        yield from ("", f"[{name}]")
    for key, value in table.items():
        if not isinstance(value, dict) and value is not None:
            yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from tables(value, f"{name}.{toml_key(key)}" if name else toml_key(key))


def toml_key(key: str) -> str:
    return key if BARE.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write what JSON has, but null: TOML has none, so a list goes without it."""
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value if item is not None)}]"
    if isinstance(value, dict):
        inside = (f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{{', '.join(inside)}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def environment(run: Run) -> list[tuple[str, str]]:
    """Return what the node said it ran on, in its own words."""
    said = run.config.get("environment")
    if not isinstance(said, dict):
        return []
    return [(str(name), str(value)) for name, value in said.items() if value not in (None, "", [], {})]


def lock(run: Run) -> str:
    """Return the packages among it as pip reads them: what a node reported, not what somebody wished for."""
    packages = [(name, value) for name, value in environment(run) if name != "python" and VERSION.fullmatch(value)]
    return "\n".join(f"{name}=={value}" for name, value in packages)
