"""Chats with a run's model, through a pipe and a terminal."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest

from trainer.cli import chat
from trainer.cli.chat import InterruptHandler, stop_at


@pytest.mark.parametrize(
    ("text", "shown"), [("one\nUser: two", "one"), ("a\nUse", "a\nUse"), ("\n\nUser:", "\n"), ("\nUs\nUser:", "\nUs")]
)
def test_stop_at_hides_only_stop_word(text: str, shown: str) -> None:
    assert "".join(stop_at("\nUser:", iter(text))) == shown
    assert "".join(stop_at("\nUser:", iter([text]))) == shown


def test_ctrl_c_ends_answer_then_program() -> None:
    before = signal.getsignal(signal.SIGINT)  # it is ignored in a background process of a shell
    with InterruptHandler() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.is_requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_through_pipe_keeps_state(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(*lines: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert chat.main([str(tiny_run), "--max-tokens", "8", "--temperature", "0"]) == 0
        out, err = capsys.readouterr()
        assert ("/reset" in err) == ("/help" in lines)
        return out

    alone = say("The cat sees")
    assert alone.endswith("\n")
    assert len(alone) > 1
    both = say("The cat sees", "The dog sees")
    assert both.startswith(alone)
    assert len(both) > len(alone)
    assert say("The cat sees", "/reset", "", "The cat sees", "/quit", "never read") == 2 * alone
    assert say("/help") == ""
