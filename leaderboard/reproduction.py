"""What it takes to train a run again: commands, a TOML file, and the environment."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from leaderboard.models import Run
from leaderboard.run_jobs import get_configuration

BARE = re.compile(r"[A-Za-z0-9_-]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
VERSION = re.compile(r"\d+(\.\d+)+\S*")


def build_recipe(run: Run) -> dict[str, Any]:
    """Return the arguments of `dailytrain train` as nested tables. The run has its entry, track and season."""
    season = run.season
    text = {"corpus": season.corpus, "tokenizer": season.tokenizer, "limit_bytes": season.limit_bytes}
    start: dict[str, Any] = {"from": f"run-{run.start_run_id}"} if run.start_run_id else {}
    if run.start_checkpoint:
        start["step"] = run.start_checkpoint.step
    return {**get_configuration(run), **{name: value for name, value in text.items() if value is not None}, **start}


def write_commands(run: Run) -> str:
    entry = run.entry
    get = [f"git clone {shlex.quote(entry.repository)} dailytrain && cd dailytrain"] if entry.public_repository else []
    flags = [
        (shlex.quote(f"--{name.replace('_', '-')}"), shlex.quote(value))
        for name, value in list_flags(build_recipe(run))
    ]
    words = [f"  {flag} {value}" for flag, value in flags]
    train = " \\\n".join(["dailytrain train", *words, f"  --out run-{run.pk}"])
    hash_ = dataset_hash(run)
    same = [f"# dataset hash: {hash_}"] if hash_ else []
    return "\n".join([*get, f"git checkout {entry.sha}", "pip install '.[training]'", train, *same])


def list_flags(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values; a table in a model's fields is one value."""
    for name, value in table.items():
        if value is None:
            continue
        if isinstance(value, dict) and value and before != "model.":
            yield from list_flags(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value if isinstance(value, str) else json.dumps(value)


def dataset_hash(run: Run) -> str:
    dataset = run.config.get("dataset")
    return str((dataset.get("hash") if isinstance(dataset, dict) else "") or run.season.dataset_hash)


def write_toml(run: Run) -> str:
    entry = run.entry
    head = [
        f"# The Daily Train, run {run.pk}: {CONTROL.sub(' ', entry.title)}",
        f"# commit {entry.sha}",
        f"# dataset hash {dataset_hash(run)}",
        f"# dailytrain train --config run-{run.pk}.toml --out run-{run.pk}",
        "",
    ]
    return "\n".join([*head, *write_toml_tables(build_recipe(run))]) + "\n"


def write_toml_tables(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a TOML table: its values, then its subtables."""
    if name:
        yield from ("", f"[{name}]")
    for key, value in table.items():
        if not isinstance(value, dict) and value is not None:
            yield f"{toml_key(key)} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from write_toml_tables(value, f"{name}.{toml_key(key)}" if name else toml_key(key))


def toml_key(key: str) -> str:
    return key if BARE.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write a JSON value. TOML has no null, so lists leave it out."""
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value if item is not None)}]"
    if isinstance(value, dict):
        inside = (f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{{', '.join(inside)}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def list_environment(run: Run) -> list[tuple[str, str]]:
    """Return the environment as the node reported it."""
    reported = run.config.get("environment")
    if not isinstance(reported, dict):
        return []
    return [(str(name), str(value)) for name, value in reported.items() if value not in (None, "", [], {})]


def write_lock(run: Run) -> str:
    """Return the packages of the environment as pip reads them."""
    packages = [(name, value) for name, value in list_environment(run) if name != "python" and VERSION.fullmatch(value)]
    return "\n".join(f"{name}=={value}" for name, value in packages)
