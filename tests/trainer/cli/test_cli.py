"""`dailytrain` with good and with bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

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
