"""Misbehaving models, each in a real sandbox, each with a fixed error message."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.support.scoring_models import needs_sandbox, score_in_sandbox, write_run
from trainer.sandbox import get_driver
from trainer.scoring import misbehavior
from trainer.scoring.model_client import ModelProcessClient, Timeouts
from trainer.scoring.run_folder import RunFolder

pytestmark = needs_sandbox

CHANGES_ITS_ANSWER = """
def later():
    time.sleep(0.2)
    maps = [line for line in open("/proc/self/maps") if "dailytrain-logits" in line]
    start, end = (int(part, 16) for part in maps[0].split()[0].split("-"))
    import ctypes
    ctypes.memset(start + (end - start) // 2, 1, (end - start) // 2)
    ctypes.memset(start + 8 * 55924 // 4096 * 4096, 1, 2 ** 20)
threading.Thread(target=later, daemon=True).start()
return self.honest(tokens)
"""

SPEAKS_ON_THE_LINE = """
for fd in range(3, 300):
    try:
        os.write(fd, b"bits_per_byte = 0.1")
    except OSError:
        pass
return self.honest(tokens)
"""

ANSWERS_TOO_EARLY = """
import socket, struct
for fd in range(3, 300):
    try:
        socket.socket(fileno=os.dup(fd)).send(struct.pack("<II", 7, 2))
    except OSError:
        pass
return self.honest(tokens)
"""

MODELS = {
    "returns NaN": ("return self.honest(tokens) / 0 * 0", misbehavior.NonFiniteLogitsError),
    "returns infinity in one place": (
        "logits = self.honest(tokens)\nlogits[0, 0, 0] = -float('inf')\nreturn logits",
        misbehavior.NonFiniteLogitsError,
    ),
    "leaves out the last position": ("return self.honest(tokens)[:, :-1]", misbehavior.LogitsShapeError),
    "returns a tuple": ("return self.honest(tokens), 0.1", misbehavior.LogitsShapeError),
    "raises an error": (
        "raise RuntimeError('the first held-out token was', tokens[0, 0])",
        misbehavior.ModelRaisedError,
    ),
    "ends its process": ("os._exit(0)", misbehavior.ModelProcessDiedError),
    "writes garbage on the line": (SPEAKS_ON_THE_LINE, misbehavior.InvalidReplyError),
    "replies before a request": (ANSWERS_TOO_EARLY, misbehavior.InvalidReplyError),
}


def get_logits_once(folder, **limits):
    run = RunFolder.open(folder)
    source, timeouts = folder / "source", Timeouts(load=60, **limits)
    with ModelProcessClient(run, get_driver("bubblewrap"), model_source=source, timeouts=timeouts) as client:
        client.wait_until_loaded()
        return client.get_logits(np.zeros((2, 8), np.int64)).copy()


@pytest.mark.parametrize("name", MODELS)
def test_misbehaving_model_raises_error_without_its_text(name, tmp_path):
    from trainer.scoring.logits import log_softmax

    forward, error_type = MODELS[name]
    with pytest.raises(misbehavior.ModelMisbehaviorError) as caught:
        log_softmax(get_logits_once(write_run(tmp_path / "run", forward)).reshape(-1, 300))
    assert type(caught.value) is error_type
    assert caught.value.detail == "", "nothing of the model's output is passed on"


def test_hanging_model_times_out(tmp_path):
    folder = write_run(tmp_path / "run", "time.sleep(600)")
    began = time.monotonic()
    with pytest.raises(misbehavior.ModelTimeoutError):
        get_logits_once(folder, reply=1)
    assert time.monotonic() - began < 30


def test_unloadable_model_raises_load_error(tmp_path):
    folder = write_run(tmp_path / "run", setup="raise OSError('no network')")
    with pytest.raises(misbehavior.ModelLoadError):
        get_logits_once(folder)


def test_logits_changed_later_are_detected_and_not_used(tmp_path):
    folder = write_run(tmp_path / "run", CHANGES_ITS_ANSWER)
    honest = write_run(tmp_path / "honest")
    expected = get_logits_once(honest)
    with ModelProcessClient(RunFolder.open(folder), get_driver("bubblewrap"), model_source=folder / "source") as client:
        client.wait_until_loaded()
        answer = client.get_logits(np.zeros((2, 8), np.int64))
        time.sleep(1)
        np.testing.assert_array_equal(answer, expected)
        with pytest.raises(misbehavior.LogitsChangedError):
            client.get_logits(np.zeros((2, 8), np.int64))


def test_printing_model_is_scored_and_its_output_dropped(tmp_path, capfd):
    loud = "print('tokens', tokens.tolist()); sys.stderr.write('x' * 100_000)\nreturn self.honest(tokens)"
    assert score_in_sandbox(write_run(tmp_path / "run", loud)).bits.tokens > 1000
    assert capfd.readouterr() == ("", "")


def test_earlier_longer_request_is_erased(tmp_path):
    leak = """
    maps = [line for line in open("/proc/self/maps") if "dailytrain-logits" in line]
    start = int(maps[0].split("-")[0], 16)
    import ctypes
    beyond = (ctypes.c_int64 * 64).from_address(start)[tokens.numel():]
    return self.honest(tokens) * 0 + sum(beyond)
    """
    run = RunFolder.open(write_run(tmp_path / "run", leak))
    with ModelProcessClient(run, get_driver("bubblewrap"), model_source=run.folder / "source") as client:
        client.wait_until_loaded()
        client.get_logits(np.full((1, 20), 7, np.int64))
        assert client.get_logits(np.full((1, 5), 7, np.int64)).max() == 0
