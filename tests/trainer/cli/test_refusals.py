"""Bad input to any command: exit code 2 and one line that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.tiny import TINY, TRACED_TRAINING

NOWHERE = "http://127.0.0.1:9"
MODEL, TRACED = " ".join(TINY), " ".join(TRACED_TRAINING)
JOIN = f"rephrase join --home TMP/home --server {NOWHERE}"
PREPARE = "prepare --corpus python-docs --tokenizer bpe:512 --limit-bytes 64KiB --quiet"
TRACE = "trace nanogpt --out TMP --depth 1 --sequence-length 16 --vocabulary-size 64"
TRAIN = "train --out TMP/run --dataset DATASET"
REFUSALS = {
    "trian": "invalid choice: 'trian'",
    "rephrase jion": "invalid choice: 'jion'",
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
    f"{TRAIN} --from RUN --step last": "--step cannot be 'last'",
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
    "swarm sample TMP --max-tokens 0": "--max-tokens: Input should be greater than or equal to 1",
    f"{JOIN} --endpoint nowhere": "is not an address",
    f"{JOIN} --backend transformers": "name one with --model",
    f"{JOIN} --endpoint {NOWHERE}/v1": "cannot be reached",
    f"{JOIN} --weights folder --backend transformers": "--weights needs --model",
    f"{JOIN} --parallel 0": "--parallel",
    f"{PREPARE} --corpus wikipedia": "There is no corpus 'wikipedia'",
    f"{PREPARE} --out /proc/nowhere/out": "/proc/nowhere cannot be created",
    "multiplier CORPUS": "--baseline",
    "multiplier nothing.json --baseline gpt": "cannot be read",
    "multiplier . --baseline gpt --axis joules": "invalid choice: 'joules'",
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
