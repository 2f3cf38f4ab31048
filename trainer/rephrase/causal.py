"""A causal language model of transformers', asked several prompts at once, each with its own sampling and seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.rephrase.serve import Asked, Written


class Causal:
    def __init__(self, name: str, revision: str | None, context: int) -> None:
        """Raise OSError or ValueError if there is no such model."""
        self._tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        self._model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype="auto").eval()
        config = self._model.config
        self.context = min(context, getattr(config, "max_position_embeddings", None) or context)
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends]) | {self._tokenizer.eos_token_id}

    def count(self, prompt: str) -> int:
        return len(self._encoded(prompt))

    def _encoded(self, prompt: str) -> list[int]:
        if self._tokenizer.chat_template:
            message = [{"role": "user", "content": prompt}]
            return list(self._tokenizer.apply_chat_template(message, add_generation_prompt=True))
        return list(self._tokenizer.encode(f"{prompt}\n\n"))

    @torch.inference_mode()
    def write(self, asked: Sequence[Asked]) -> list[Written]:
        tokens, mask = self._padded([self._encoded(one.prompt) for one in asked])
        dice = [torch.Generator().manual_seed(one.seed % 2**63) for one in asked]
        written: list[list[int]] = [[] for _ in asked]
        ended = [False] * len(asked)
        past = None
        for _ in range(max(one.max_tokens for one in asked)):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            reply = self._model(
                input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
            )
            past = reply.past_key_values
            drawn = [
                draw(row, one, die) for row, one, die in zip(reply.logits[:, -1].float(), asked, dice, strict=True)
            ]
            for row, token in enumerate(drawn):
                if not ended[row] and len(written[row]) < asked[row].max_tokens:
                    ended[row] = token in self._ends
                    written[row] += [] if ended[row] else [token]
            if all(done or len(row) >= one.max_tokens for done, row, one in zip(ended, written, asked, strict=True)):
                break
            tokens = torch.tensor(drawn).unsqueeze(1)
            mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
        return [
            Written(self._tokenizer.decode(row, skip_special_tokens=True), "stop" if done else "length", len(row))
            for row, done in zip(written, ended, strict=True)
        ]

    def _padded(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return token ids and mask [prompts, longest], filled up on the left."""
        longest = max(map(len, prompts))
        tokens = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(tokens), torch.tensor(mask)


def draw(logits: Tensor, asked: Asked, dice: torch.Generator) -> int:
    """Return one token id of a row of logits [vocabulary]."""
    if asked.temperature == 0:
        return int(logits.argmax())
    chances, order = (logits / asked.temperature).softmax(-1).sort(descending=True)
    chances[chances.cumsum(-1) - chances >= asked.top_p] = 0  # the first is always kept
    return int(order[torch.multinomial(chances, 1, generator=dice)])
