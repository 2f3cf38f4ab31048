"""`dailytrain` with good and with bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from tests.support.tiny import TINY, TRACED_TRAINING
from trainer.cli import reference
from trainer.cli.main import COMMANDS, Command, main
from trainer.models import ARCHITECTURES


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, commands in ((["--help"], COMMANDS), (["rephrase", "-h"], COMMANDS["rephrase"].commands)):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        text = capsys.readouterr().out
        assert stop.value.code == 0
        assert all(re.search(rf"^    {name}\b", text, re.MULTILINE) for name in commands)
        assert main(arguments[:-1]) == 0
        assert capsys.readouterr().out == text


IMPORTS = """
import sys
from trainer.cli.main import main
for arguments, heavy in (
    (["--help"], {"torch", "numpy", "django", "pydantic", "rich"}),
    (["nothing"], {"torch", "numpy", "django", "pydantic", "rich"}),
    (["node", "--help"], {"torch", "numpy", "django"}),
):
    try:
        main(arguments)
    except SystemExit:
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
import trainer.node.agent, trainer.node.identity, trainer.node.slot_loops
heavy = {"torch", "django", "lightning_fabric", "numpy", "transformers", "pynvml"} & set(sys.modules)
assert not heavy, heavy
import trainer.cli.multiplier
heavy = {"torch", "django", "scipy.stats"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.processes
def test_light_commands_and_the_agent_import_no_torch() -> None:
    """They start at once, also on machines without torch."""
    subprocess.run([sys.executable, "-c", IMPORTS], stdout=subprocess.DEVNULL, check=True)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "trainer.cli.arch", raising=False)
    assert main(["arch", "list"]) == 2
    assert "arch: needs the package torch: pip install 'dailytrain[training]'" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["rephrase", "check"]) == 2
    assert "needs the package py3langid: pip install 'dailytrain[rephrase]'" in capsys.readouterr().err


def test_arch_list_names_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arch", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(ARCHITECTURES)


# --- docs/reference/cli.md, and flags that mean the same in all commands ----------------------------------------------


PAGE = Path(__file__).parents[3] / "docs/reference/cli.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference.build_page(), "run `make docs-cli`"


def test_shared_flags_take_the_same_values_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in reference.iterate_commands(COMMANDS):
        for action in reference.list_flags(reference.find_parser(command)):
            value = reference.describe_value(action).strip("`{}").replace("` or `", ",")
            meanings.setdefault(action.option_strings[-1], set()).add(value)
    assert "--folder" not in meanings
    assert meanings["--device"] == {"auto,cpu,cuda"}
    assert all(len(meanings[flag]) == 1 for flag in ("--device", "--label", "--json", "--home", "--keep"))


def test_commands_in_docs_have_only_known_flags() -> None:
    """Fields of a configuration (`--model.depth`) are checked by the page of the configuration."""
    commands = dict(reference.iterate_commands(COMMANDS))
    flags = {name: list_option_strings(name, commands) for name in commands}
    unknown: list[str] = []
    for page in [*PAGE.parents[1].rglob("*.md"), *PAGE.parents[2].glob("*.md")]:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?:\.venv/bin/)?dailytrain ([a-z].*)$", text, re.M):
            name = next((name for name in flags if line.split("#")[0].startswith(name)), "")
            used = re.findall(r"(?<!\S)--([\w-]+)(?=[\s=]|$)", line.split("#")[0])
            unknown += [f"{page.name}: {line}" for flag in used if f"--{flag}" not in flags.get(name, ())]
            assert name, f"{page.name}: {line}"
    assert unknown == []


def list_option_strings(name: str, commands: Mapping[str, Command]) -> set[str]:
    options = {"train"} if name == "smoke" else set()  # it passes further flags on
    found = {
        option
        for each in {name, *options}
        for action in reference.list_flags(reference.find_parser(commands[each]))
        for option in action.option_strings
    }
    return found | {option.replace("_", "-") for option in found} | {"--help"}


# --- bad input to any command: exit code 2 and one line that names it -------------------------------------------------


NOWHERE = "http://127.0.0.1:9"
MODEL, TRACED = " ".join(TINY), " ".join(TRACED_TRAINING)
JOIN = f"rephrase join --home TMP/home --server {NOWHERE}"
PREPARE = "prepare --corpus python-docs --tokenizer bpe:512 --limit-bytes 64KiB --quiet"
TRACE = "trace nanogpt --out TMP --depth 1 --sequence-length 16 --vocabulary-size 64"
TRAIN = "train --out TMP/run --dataset DATASET"
REFUSALS = {
    "trian": "invalid choice: 'trian'",
    "train --out TMP/run --budget soon": "impossible budget 'soon'",
    f"{TRAIN} --model.dept 3": "gpt has no option 'dept'; it has backout, depth",
    f"{TRAIN} --model.width big": "model.width cannot be 'big': it is of type int",
    "train --out TMP/run --dataset absent": "absent is not a dataset",
    f"{TRAIN} --train.sequence-length 1000000": "too few for sequences",
    f"{TRAIN} --logger wandb": "pip install 'dailytrain[loggers]'",
    f"{TRAIN} --device cuda": "no GPU",
    f"{TRAIN} {MODEL} --train.chunk 1": "train.chunk must be at least 2",
    f"{TRAIN} {TRACED} --graph GRAPH --train.sequence-length 16": "traced for sequence_length 32, and this run has 16",
    f"{TRAIN} {TRACED} --graph GRAPH --model.depth 3": "graph fixes the model",
    f"{TRAIN} --lora.rank 4": "lora.rank needs --from",
    f"{TRAIN} --from RUN --lora.rank 4 --lora.targets nothing.*": "no linear layer is named 'nothing.*'",
    f"{TRAIN} --from RUN --lora.targets mlps.*": "need a lora.rank",
    f"{TRAIN} --from RUN --step 7": "there is no checkpoint of step 7; it has 20, 30",
    f"{TRAIN} --step 7": "--step needs --from with a run's folder",
    "sample TMP/absent": "absent",
    "chat TMP": "has no complete checkpoint",
    "sample RUN --max-tokens -1": "--max-tokens cannot be negative",
    f"sample RUN --seed {10**20}": "the seed must be from 0",
    "sample RUN --top-k 0": "top-k must leave",
    "sample RUN --device cuda": "torch finds no GPU here",
    "try gpt --dataset DATASET --rungs a,b": "must be numbers",
    "try gpt --dataset DATASET --modle.depth=3": "no option --modle.depth=3",
    "try nowhere.toml --dataset DATASET": "cannot read nowhere.toml",
    "try x.toml --dataset DATASET --model.depth=3": "--model.depth=3 belongs into x.toml",
    "smoke gpt --sandbox docker": "the sandboxes are auto, bubblewrap and none, not docker",
    "swarm sample TMP": "there is no swarm at",
    f"{JOIN} --endpoint nowhere": "is not an address",
    f"{JOIN} --backend transformers": "name one with --model",
    f"{JOIN} --endpoint {NOWHERE}/v1": "cannot be reached",
    f"{JOIN} --weights folder --backend transformers": "--weights needs --model",
    f"{JOIN} --parallel 0": "--parallel",
    f"{PREPARE} --corpus wikipedia": "There is no corpus 'wikipedia'",
    f"{PREPARE} --out /proc/nowhere/out": "/proc/nowhere cannot be created",
    "multiplier nothing.json --baseline gpt": "cannot be read",
    "multiplier . --baseline gpt --full nan": "must be a number above 0, not 'nan'",
    "graph GRAPH --drawing TMP/nowhere/x.svg": "--drawing: there is no folder",
    "graph TMP": "init.json is missing",
    f"{TRACE} --set width": "--set takes NAME=VALUE, not 'width'",
    f"{TRACE} --set colour=1": "unexpected keyword argument 'colour'",
    f"{TRACE} --set heads=5": "a multiple of heads",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_bad_input_prints_one_line(
    command: str,
    tiny_run: Path,
    traced_run: Path,
    dataset_folder: Path,
    corpus_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[..., str],
) -> None:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    places = {"TMP": tmp_path, "RUN": tiny_run, "GRAPH": traced_run / "graph", "DATASET": dataset_folder}
    words = command.replace("CORPUS", f"files:{corpus_folder}/*.txt")
    for name, place in places.items():
        words = words.replace(name, str(place))
    assert REFUSALS[command] in refuse(*words.split(" "))
