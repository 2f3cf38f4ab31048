"""Parse a run's configuration from flags and from the TOML or JSON file that `--config` names.

Four layers; later ones override earlier ones: the base checkpoint (`--from`), the preset, the file, the flags.
jsonargparse checks types and merges the file with the flags. The file is read here, because jsonargparse's error
messages do not name it.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config.presets import get_preset_values
from trainer.config.train_config import ConfigError, TrainConfig, flatten_table
from trainer.text_files import decode_text

if TYPE_CHECKING:
    import jsonargparse

FROM_HELP = """Weights to start from: a run, one of its checkpoints, or a checkpoint folder of litgpt's. Its
architecture, row length and tokenizer are the defaults."""
EAGER_HELP = "Train the Python module of `arch`, for debugging, instead of graphs traced from it."
TEXT_FIELDS = ("corpus", "tokenizer", "limit_bytes")  # what a prepared dataset replaces


def parse_config(argv: Sequence[str], prog: str = "dailytrain train") -> TrainConfig:
    """Return the configuration; raise `ConfigError` with one line. `--help` prints and exits."""
    import jsonargparse

    file, flags = split_config_flag([use_underscores(flag) for flag in argv])
    content = {} if file is None else read_config_file(file)
    parser = build_parser(prog)
    try:
        explicit = parser.parse_args([f"--config={json.dumps(content, default=str)}", *flags], defaults=False).as_dict()
        namespace = parser.parse_object(add_weaker_layers(explicit))
        values = vars(parser.instantiate_classes(namespace))
    except jsonargparse.ArgumentError as error:
        raise ConfigError(shorten_message(str(error), flags, content)) from error
    for name in ("config", "step", "version"):
        del values[name]  # `add_weaker_layers` has applied them
    return TrainConfig(from_=values.pop("from"), **values)


def build_parser(prog: str) -> jsonargparse.ArgumentParser:
    import jsonargparse

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description="Train an architecture within a budget.",
        epilog="Words of a flag may be joined with - or with _.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", metavar="FILE", help="TOML or JSON file with any of these.")
    parser.add_argument("--from", type=Path, metavar="FOLDER", help=FROM_HELP)
    parser.add_argument("--step", type=int, metavar="N", help="With --from a run: its checkpoint of step N.")
    parser.add_argument("--version", type=float, metavar="V", help="Short for --model.version, as rwkv5 has.")
    parser.add_argument("--eager", action="store_true", help=EAGER_HELP)
    parser.add_class_arguments(TrainConfig, None, skip={"from_", "eager"})
    return parser


def add_weaker_layers(explicit: dict[str, Any]) -> dict[str, Any]:
    """Add the values of preset and base checkpoint that are not set explicitly, by file or flags."""
    step, version, preset = explicit.pop("step", None), explicit.pop("version", None), explicit.get("preset")
    explicit["recipe"] = dict(flatten_table(explicit.get("recipe", {})))
    if version is not None:
        explicit.setdefault("model", {})["version"] = version
    values = {} if preset is None else nest_values(get_preset_values(preset))
    if explicit.get("from") is not None:
        from trainer.checkpoint.base_weights import find_base_checkpoint

        base = find_base_checkpoint(explicit["from"], step)
        explicit["from"] = base.folder if step is not None else explicit["from"]
        # The model's size is the checkpoint's; row length and text can be the preset's.
        values = {name: value for name, value in values.items() if name not in ("arch", "tokenizer")}
        values.get("model", {}).pop("depth", None)
        values = merge_values(base.get_config_defaults(), values)
    elif step is not None:
        raise ConfigError("--step needs --from with a run's folder")
    if explicit.get("dataset") is not None:
        values = {name: value for name, value in values.items() if name not in TEXT_FIELDS}
    return merge_values(values, explicit)


def nest_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"train.batch": 8}` as `{"train": {"batch": 8}}`, one level deep."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        table, _, field = name.partition(".")
        if field:
            nested.setdefault(table, {})[field] = value
        else:
            nested[name] = value
    return nested


def merge_values(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables, and each of their own tables field by field."""
    merged = dict(weak)
    for name, value in strong.items():
        both_tables = isinstance(value, Mapping) and isinstance(weak.get(name), Mapping)
        merged[name] = {**weak[name], **value} if both_tables else value
    return merged


def use_underscores(flag: str) -> str:
    """Return `--limit-bytes=a-b` as `--limit_bytes=a-b`."""
    name, equals, value = flag.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if flag.startswith("--") else flag


def split_config_flag(flags: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file that `--config` names and the other flags, which override it in any order."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    try:
        options, others = parser.parse_known_args(list(flags))
    except argparse.ArgumentError as error:
        raise ConfigError("--config needs the name of a file") from error
    return options.config, others


def read_config_file(file: Path) -> dict[str, Any]:
    kind = "JSON" if file.suffix == ".json" else "TOML"
    try:
        text = decode_text(file.read_bytes())
        content = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the configuration {file} is not {kind}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {file} must be a table of names and values")
    return replace_dashes(content)


def replace_dashes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with `_` for `-` in the names of options; a model's own tables stay as they are."""

    def rename(table: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace("-", "_"): value for name, value in table.items()}

    return {name: rename(value) if isinstance(value, dict) else value for name, value in rename(content).items()}


def shorten_message(message: str, flags: Sequence[str], content: Mapping[str, Any]) -> str:
    """Shorten jsonargparse's message of several lines to the option and the value that was wrong."""
    key = re.search(r'[Kk]ey "([^"]+)"', message)
    if "is required" in message and key:
        return f"--{key[1].replace('_', '-')} is required"
    if key:
        values = {**dict(flatten_table(content)), **read_flag_values(flags)}
        return f"--{key[1].replace('_', '-')} cannot be {values.get(key[1])!r}; see --help"
    unknown = re.search(r"Unrecognized arguments: (.*)|[Kk]ey '([^']+)'", message)
    if unknown:
        return f"there is no option {unknown[1] or '--' + unknown[2]}; see --help"
    return " ".join(message.split())


def read_flag_values(flags: Sequence[str]) -> dict[str, str]:
    """Return the values of `--name value` and `--name=value` by name; the last one wins."""
    values = {}
    for flag, following in pairwise([*flags, ""]):
        name, equals, value = flag.partition("=")
        values[name.removeprefix("--")] = value if equals else following
    return values
