"""Parse a run's configuration from flags and from the TOML or JSON file they name (`trainer.config.train_config`).

A file, a preset and a checkpoint to start from are turned into the flags they stand for: one way to check them all.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer.config.train_config import ConfigError, TrainConfig

FROM = """Weights to start from: a run, one of its checkpoints, or a checkpoint folder of litgpt's. It brings its
architecture, row length and tokenizer along, where nothing else is given."""


def parse_config(argv: Sequence[str], prog: str = "dailytrain train") -> TrainConfig:
    """Read flags, and the file they name; raise `ConfigError` with one line. `--help` prints and exits."""
    import jsonargparse

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        description="Train an architecture within a budget.",
        epilog="A flag's words may be joined with - or with _.",
        exit_on_error=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with any of these; flags win.")
    parser.add_argument("--from", type=Path, metavar="FOLDER", help=FROM)
    parser.add_argument("--step", type=int, metavar="N", help="With --from a run: its checkpoint of step N.")
    parser.add_argument(
        "--version", metavar="V", help="The model's version, short for --model.version: rwkv5 has some."
    )
    parser.add_class_arguments(TrainConfig, None, skip={"from_"})
    flags = complete([with_underscores(flag) for flag in argv])
    try:
        namespace = parser.parse_args(flags)
        for name in ("config", "step", "version"):
            del namespace[name]  # they stand for others, see `complete`
        values = vars(parser.instantiate_classes(namespace))
        return TrainConfig(from_=values.pop("from"), **values)
    except jsonargparse.ArgumentError as error:
        raise ConfigError(one_line(str(error), flags)) from error


def complete(given: list[str]) -> list[str]:
    """Put before the flags what they name: a preset, a checkpoint to start from, a file. The later ones win.

    All of them are the flags they stand for: one way to check them all.
    """
    from trainer.config.presets import get_preset_values

    given = at_step(versioned(flags_of(file_named(given)) + given))
    preset, folder = last_given(given, "preset"), last_given(given, "from")
    weakest = dict(get_preset_values(preset)) if preset is not None else {}
    if last_given(given, "dataset") is not None:
        weakest = {name: value for name, value in weakest.items() if name not in ("corpus", "tokenizer", "limit_bytes")}
    if folder is None:
        return as_flags(weakest) + given
    from trainer.training import finetune

    brought = finetune.flags(Path(folder), given)
    # The sizes of a checkpoint are its own; how long a row is and where the text comes from can be the preset's.
    rest = {name: value for name, value in weakest.items() if name not in ("arch", "tokenizer", "model.depth")}
    return brought + as_flags(rest) + given


def versioned(given: list[str]) -> list[str]:
    """Have `--version V` say `--model.version=V`."""
    version = last_given(given, "version")
    return given if version is None else [*given, f"--model.version={version}"]


def at_step(given: list[str]) -> list[str]:
    """Have `--from RUN --step N` name that checkpoint."""
    step, folder = last_given(given, "step"), last_given(given, "from")
    if step is None:
        return given
    if folder is None or not step.isdecimal():
        raise ConfigError("--step is the number of a step, and goes with --from a run's folder")
    from trainer.training import finetune

    return [*given, f"--from={finetune.rewound(Path(folder), int(step))}"]


def last_given(flags: Sequence[str], name: str) -> str | None:
    """Return the value that wins of `--name value` and `--name=value`; None if there is none."""
    joined = [(place, flag.partition("=")[2]) for place, flag in enumerate(flags) if flag.startswith(f"--{name}=")]
    apart = [(place, value) for place, (flag, value) in enumerate(pairwise(flags)) if flag == f"--{name}"]
    return max([*joined, *apart], default=(0, None))[1]


def with_underscores(flag: str) -> str:
    """`--limit-bytes=5` is `--limit_bytes=5`; values are left alone."""
    name, equals, value = flag.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if flag.startswith("--") else flag


def file_named(flags: Sequence[str]) -> Path | None:
    """Return the configuration file that the flags name."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    try:
        return parser.parse_known_args(list(flags))[0].config
    except argparse.ArgumentError as error:
        raise ConfigError("--config needs the name of a file") from error


def flags_of(file: Path | None) -> list[str]:
    """Read a TOML or JSON file as the flags it stands for."""
    if file is None:
        return []
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        raise ConfigError(f"the configuration {file} is not {kind}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {file} must be a table of names and values")
    return [with_underscores(flag) for flag in as_flags(content)]


def as_flags(content: Mapping[str, Any], before: str = "") -> list[str]:
    """Return a table of tables as the flags that say the same, one for each value; a model's field may be a table."""
    flags: list[str] = []
    for name, value in content.items():
        if isinstance(value, dict) and value and before != "model.":
            flags += as_flags(value, f"{before}{name}.")
        else:
            flags.append(f"--{before}{name}={value if isinstance(value, str) else json.dumps(value)}")
    return flags


def one_line(message: str, flags: Sequence[str]) -> str:
    """Shorten jsonargparse's explanation, several lines of types, to what was wrong."""
    key = re.search(r'[Kk]ey "([^"]+)"', message)
    if "is required" in message and key:
        return f"--{key[1].replace('_', '-')} is needed"
    if key:
        joined = next((flag.partition("=")[2] for flag in reversed(flags) if flag.startswith(f"--{key[1]}=")), None)
        apart = next((value for flag, value in pairwise(flags) if flag == f"--{key[1]}"), None)
        return f"--{key[1].replace('_', '-')} cannot be {(joined or apart)!r}; see --help"
    if message.startswith("Unrecognized arguments: "):
        return f"there is no option {message.removeprefix('Unrecognized arguments: ').strip()}; see --help"
    return " ".join(message.split())
