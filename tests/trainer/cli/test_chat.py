"""Chats with a run's model, through a pipe and a terminal."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.cli import chat
from trainer.cli.chat import Conversation, InterruptHandler, stop_at
from trainer.data.tokenizer import Tokenizer, load_tokenizer
from trainer.inference.sampling import Sampler
from trainer.models.base import LanguageModel


@pytest.fixture(scope="module")
def tokenizer(dataset_folder: Path) -> Tokenizer:
    return load_tokenizer(dataset_folder / "tokenizer.json")


class ScriptedModel(LanguageModel):
    """Repeats one text, and records the tokens that it has read."""

    bounded = False

    def __init__(self, text: list[int], vocabulary_size: int) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.nn.functional.one_hot(torch.tensor(text), vocabulary_size).float() * 1000)
        self.position = 0
        self.read: list[int] = []

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.read.extend(tokens[0].tolist())
        row = self.rows[self.position % len(self.rows)]
        self.position += 1
        return row.expand(1, tokens.size(1), -1), self

    def logits(self, features: Tensor) -> Tensor:
        return features


def build_conversation(tokenizer: Tokenizer, says: str) -> Conversation:
    model = ScriptedModel([*tokenizer.encode(says)], tokenizer.vocabulary_size)
    return Conversation(model, tokenizer, 64, Sampler())


def test_answer_ends_at_users_next_line_and_each_token_is_read_once(tokenizer: Tokenizer) -> None:
    conversation = build_conversation(tokenizer, " I do.\nUser:")
    assert "".join(conversation.generate_answer("Who sees the cat?", 50)) == " I do."
    assert "".join(conversation.generate_answer("Who else?", 50)) == " I do."
    expected = "User: Who sees the cat?\nAssistant: I do.\nUser: Who else?\nAssistant: I do.\nUser:"
    assert tokenizer.decode(conversation.generator.text) == expected
    assert conversation.model.read == conversation.generator.text[: len(conversation.model.read)]
    conversation.reset()
    "".join(conversation.generate_answer("me", 1))
    assert tokenizer.decode(conversation.generator.text).startswith("User: me\nAssistant:")


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
