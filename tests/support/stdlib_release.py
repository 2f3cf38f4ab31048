"""A release of `trainer/` in a few lines without dependencies: it follows the protocol without training."""

from __future__ import annotations

import io
import tarfile

TRAIN = """
import hashlib, json, os, signal, sys, time
from pathlib import Path
from trainer.models import gpt

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config = json.loads(Path(options["--config"]).read_text())
data, out = Path(options["--dataset"]), Path(options["--out"])
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))

def fail(code, fault, reason):
    (out / "failure.json").write_text(json.dumps({"fault": fault, "reason": reason}))
    raise SystemExit(code)

def save(step):
    folder = out / "checkpoints" / f"step-{step:08d}"
    aside = folder.with_name(folder.name + ".partial")
    aside.mkdir(parents=True, exist_ok=True)
    (aside / "model.safetensors").write_bytes(b"weights %d " % step * config.get("weight", 100))
    (aside / "optimizer.pt").write_bytes(b"momenta %d" % step)
    (aside / "state.json").write_text(json.dumps({"step": step}))
    files = []
    for path in sorted(aside.iterdir()):
        content = path.read_bytes()
        files.append({"path": path.name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
    (aside / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    aside.rename(folder)

begun = 0
for folder in sorted((out / "checkpoints").glob("step-*")):
    for file in json.loads((folder / "manifest.json").read_text())["files"]:
        assert hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest() == file["sha256"]
    begun = json.loads((folder / "state.json").read_text())["step"]
(out / "run.json").write_text(json.dumps({"format": 1, "arch": gpt.NAME, "config": config}))
print(f"training {gpt.NAME} from step {begun}")
exec(config.get("misbehave", ""))
with (out / "metrics.jsonl").open("a") as metrics:
    for step in range(begun + 1, config["steps"] + 1):
        time.sleep(config.get("pace", 0.001))
        print(json.dumps({"kind": "train", "step": step, "loss": 10 / step}), file=metrics, flush=True)
        if step % config.get("every", 10) == 0 or stopping:
            save(step)
        if stopping:
            raise SystemExit(130)
result = {"steps": config["steps"], "final_loss": 10 / config["steps"], "arch": gpt.NAME,
          "data": sorted(path.name for path in data.iterdir()), "environment": sorted(os.environ)}
(out / "result.json").write_text(json.dumps(result))
"""

PREPARE = """
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
options = {word: words[i + 1] for i, word in enumerate(words) if word in ("--corpus", "--tokenizer", "--out")}
folder = Path(options["--out"])
for split in ("train", "dev", "test"):
    (folder / split).mkdir(parents=True)
    (folder / split / "00000.bin").write_text(split)
(folder / "tokenizer.json").write_text("{}")
made = {"corpus": options["--corpus"], "hash": ("%x" % len(options["--corpus"]))[0] * 64}
(folder / "manifest.json").write_text(json.dumps(made))
if os.environ.get("PREPARATIONS"):
    with open(os.environ["PREPARATIONS"], "a") as log:
        log.write(options["--corpus"] + chr(10))
print(json.dumps(made))
"""

SCORE = """
import json, sys, time
from pathlib import Path
from trainer.models import gpt

words = sys.argv[1:]
options = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}
run = Path(sys.argv[1])
sys.stderr.write("scoring" + chr(10))
text = Path(options["--dataset"]) / "test" / "00000.bin" if "--dataset" in options else None
text = text or Path(options["--corpus"].removeprefix("files:"))
if json.loads((run / "run.json").read_text()).get("sleeps"):
    time.sleep(60)
if json.loads((run / "run.json").read_text()).get("cheats"):
    print(json.dumps({"failed": "The model looks ahead.", "fault": "model"}))
    raise SystemExit(3)
reference = None
if "--items" in options:
    Path(options["--items"]).write_text("items")
    Path(options["--items"]).with_name("losses.npy").write_text("losses")
    reference = Path(options["--reference"]).read_text()
print(json.dumps({
    "bits_per_byte": 1.5, "files": sorted(path.name for path in run.glob("checkpoints/*/*")),
    "architecture": gpt.NAME, "graph": sorted(path.name for path in run.glob("graph/*")),
    "reference": reference, "suite": options.get("--suite"), "limit": options.get("--limit-tokens"),
    "evaluation": {
        str(path.relative_to(options["--eval-data"])): path.read_text()
        for path in sorted(Path(options["--eval-data"]).rglob("*")) if path.is_file()
    } if "--eval-data" in options else None,
    "test": text.read_text(), "sees_secret": text.with_name("secret").exists(),
    "tokenizer": (run / "tokenizer.json").exists(),
}))
"""

DRAW = """
import sys
from pathlib import Path

words = sys.argv[2:]
options = dict(zip(words, words[1:]))
split = (Path(sys.argv[1]) / "test" / "00000.bin").read_text()
limit, secret = options["--limit-tokens"], Path(options["--secret"]).read_text()
Path(options["--out"]).write_text(f"{limit} tokens of {split}, drawn by {secret}")
"""

PROBE = """
import json, sys
from pathlib import Path

sys.stderr.write("probing" + chr(10))
speed = float(sys.argv[sys.argv.index("--width") + 1])
if speed == 128:
    raise SystemExit(1)
print(json.dumps({"tokens_per_second": speed, "spread": 0.01, "steps": 5, "loss": 8.5}))
"""

REPLAY = """
import json, os, sys
from pathlib import Path
from trainer.models import gpt

options = dict(zip(sys.argv[1:], sys.argv[2:]))
ends = [int(word) for word in sys.argv if word.isdecimal()]
config, until = json.loads(Path(options["--config"]).read_text()), ends[-1]
out = Path(options["--out"]) / "checkpoints"
begun = max((int(folder.name[5:]) for folder in out.glob("step-*")), default=0)
told = json.loads(Path(options["--recorded-state"]).read_text())
print(f"replaying {gpt.NAME} from step {begun} to {ends}, told {told}")

def save(step):
    folder = out / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights %d " % step * config.get("weight", 100))

if begun == 0:
    save(0)
for end in ends:
    save(end)
exec(config.get("misbehave_again", ""))
"""

REPLAY_COMPARE = """
import json, sys
from pathlib import Path

start, claimed, replayed = ((Path(word) / "model.safetensors").read_bytes() for word in sys.argv[1:4])
exact = claimed == replayed
print(json.dumps({"exact": exact, "deviation": 0.0 if exact else 1.5, "state_deviation": 0.0}))
"""

SMOKE = """
import json, sys
from pathlib import Path
import trainer.models.gpt as pure

arch, words = sys.argv[1], sys.argv[2:]
options = dict(zip(words, words[1:]))
config = json.loads(Path(options["--config"]).read_text())
sys.stderr.write("smoking" + chr(10))
if config.get("breaks"):
    raise SystemExit(1)
graph = Path(options["--graph-out"])
graph.mkdir()
for name in ("init", "train", "eval", "recipe"):
    (graph / (name + ".json")).write_text(options["--vocabulary-size"])
entry = (Path(options["--model-source"]) / "trainer/models/gpt.py").read_text().strip()
said = {name: options.get(name) for name in ("--sandbox", "--tokenizer", "--memory-bytes", "--peak")}
passed = not config.get("fails")
print(json.dumps(config.get("nonsense") or {
    "passed": passed, "sentence": f"{arch}: {pure.NAME} smokes {entry}, {said}", "checks": [], "parameters": 7.0}))
raise SystemExit(0 if passed else 3)
"""

NOTEBOOK = """
import json, os, sys
from pathlib import Path
from trainer.models import gpt

code = Path(sys.argv[1]).read_text()
Path("executed.ipynb").write_text(json.dumps({"executed": code}))
print("part", os.environ["DAILYTRAIN_PART"], "of", os.environ["DAILYTRAIN_PARTS"], gpt.NAME)
try:
    exec(code)
except ValueError as error:
    Path("failure.json").write_text(json.dumps({"fault": "model", "reason": str(error)}))
    raise SystemExit(3)
Path("result.json").write_text(json.dumps({"cells": 2, "seconds": 0.5, "left": 99}))
"""

COMMAND = """
import runpy, sys

runpy.run_module(f"trainer.cli.{sys.argv.pop(1)}", run_name="__main__")
"""

FILES = {
    "trainer/__init__.py": "",
    "trainer/train.py": TRAIN,
    "trainer/accounting/probe.py": PROBE,
    "trainer/notebook.py": NOTEBOOK,
    "trainer/training/replay.py": REPLAY,
    "trainer/scoring/compare_replay.py": REPLAY_COMPARE,
    "trainer/data/__init__.py": "",
    "trainer/cli/__main__.py": COMMAND,
    "trainer/cli/draw.py": DRAW,
    "trainer/cli/prepare.py": PREPARE,
    "trainer/cli/score.py": SCORE,
    "trainer/cli/smoke.py": SMOKE,
    "trainer/models/__init__.py": "",
    "trainer/models/gpt.py": 'NAME = "baseline"\n',
    "trainer/scoring/__init__.py": "",
}
ENTRY = {"trainer/models/gpt.py": 'NAME = "entry"\n'}


def build_tar(files: dict[str, str], members: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """An uncompressed tar of these files, and of members without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()
