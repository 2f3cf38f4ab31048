"""`dailytrain` with good and with bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import TINY
from trainer.cli.main import COMMANDS, main
from trainer.models import ARCHITECTURES

pytestmark = pytest.mark.processes


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


def test_damaged_checkpoint_prints_one_line(
    tiny_run: Path, dataset_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], refuse: Callable[..., str]
) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    (run / "checkpoints/step-00000030/model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors is damaged" in refuse("sample", run)
    assert "absent" in refuse("sample", tmp_path / "absent")
    assert "has no complete checkpoint" in refuse("chat", tmp_path)
    shutil.rmtree(run / "checkpoints/step-00000030")
    (run / "checkpoints/step-00000020/optimizer.pt").write_bytes(b"nothing")
    assert main(["train", "--dataset", str(dataset_folder), "--out", str(run), "--budget", "30steps", *TINY]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert "optimizer.pt is damaged" in lines[-1]
    assert not any("Traceback" in line for line in lines)


def test_train_prepares_corpus(corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    flags = ["--corpus", f"files:{corpus_folder}/*.txt", "--tokenizer", "bpe:300", "--budget", "2steps", *TINY]
    assert main(["train", "--out", str(tmp_path / "run"), *flags]) == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["dataset"]["tokenizer"] == "bpe:300"
    assert run["dataset"]["limit_bytes"] == 16 * 2**20
