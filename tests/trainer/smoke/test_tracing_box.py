"""The tracing sandbox holds no corpus, no prepared dataset, no code that reads data, and no network."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from trainer.cli.smoke import TRACING_PARTS, build_sandbox_spec, parse_arguments
from trainer.sandbox import get_driver

REFUSAL = get_driver("bubblewrap").find_problem()
pytestmark = [pytest.mark.processes, pytest.mark.skipif(REFUSAL is not None, reason=REFUSAL or "")]

PROBE = """
import glob, importlib, json, os, socket, sys
sources, cache, port = sys.argv[1:4]

def attempt(act):
    try:
        return str(act())[:200] or "something"
    except BaseException as error:
        return f"{type(error).__name__}"

def connect():
    return socket.create_connection(("127.0.0.1", int(port)), timeout=5)

found = {name: attempt(lambda: importlib.import_module(name)) for name in (
    "trainer.data", "trainer.data.corpora", "trainer.data.dataset", "trainer.scoring", "trainer.graph.files",
    "trainer.node", "pydoc_data.topics")}
for place in sources.split(":"):
    found[place] = attempt(lambda: sorted(os.listdir(place + "/trainer")))
    found[place + " corpus"] = attempt(lambda: open(place + "/trainer/data/corpora/python_docs.jsonl.xz", "rb").read(6))
found["corpora"] = [path for start in sys.path + sources.split(":")
                    for path in glob.glob(start + "/trainer/**/*.jsonl*", recursive=True)]
found["cache"] = attempt(lambda: os.listdir(cache))
found["variables"] = sorted(name for name in os.environ if name.startswith("DAILYTRAIN"))
found["share"] = attempt(lambda: os.listdir("/usr/share"))
found["network"] = attempt(connect)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry's source, beside the installed trainer of this process."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(REPOSITORY / "trainer", folder / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def found(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe found from inside."""
    out, cache = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("cache")
    (cache / "text").write_text("The test text.")
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("DAILYTRAIN_DATA", "DAILYTRAIN_CACHE"):
            patch.setenv(name, str(cache))
        options, flags = parse_arguments(["gpt", "--model-source", str(source)])
        spec = build_sandbox_spec(options, flags, 512, out)
        places = f"{source}:{REPOSITORY}"
        command = [sys.executable, "-s", "-P", "-c", PROBE, places, str(cache), str(server.getsockname()[1])]
        with (out / "log").open("wb") as log:
            process = get_driver("bubblewrap").start(dataclasses.replace(spec, command=command), log, log)
            process.wait()
            process.kill()
    answer: dict[str, Any] = json.loads((out / "log").read_text().splitlines()[-1])
    return answer


def test_constructor_that_looks_for_text_gets_nothing(found: dict[str, Any], source: Path) -> None:
    assert found["trainer.graph.files"].startswith("<module"), "what tracing needs is there"
    for name in ("trainer.data", "trainer.data.corpora", "trainer.data.dataset", "pydoc_data.topics"):
        assert found[name] == "ModuleNotFoundError"
    for place in (source, REPOSITORY):
        assert found[f"{place} corpus"] == "FileNotFoundError"
    assert found["cache"] == "FileNotFoundError"
    assert found["corpora"] == found["variables"] == []


def test_box_holds_the_parts_of_the_trainer_that_tracing_imports(found: dict[str, Any], source: Path) -> None:
    assert found[str(source)] == str(sorted(TRACING_PARTS))
    assert found[str(REPOSITORY)] == "[]", "the installed trainer is hidden"
    assert found["trainer.scoring"] == found["trainer.node"] == "ModuleNotFoundError"


def test_box_has_neither_shared_text_nor_network(found: dict[str, Any]) -> None:
    assert found["share"] == "[]"
    assert found["network"] in ("ConnectionRefusedError", "OSError")
