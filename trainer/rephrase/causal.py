"""A causal language model of transformers that completes a batch of prompts with a sampler and a seed for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessor

from trainer.rephrase.backends.protocol import Completion, CompletionRequest


class CausalCompletionModel:
    def __init__(self, name: str, revision: str | None, context: int) -> None:
        """Load the model. Raise OSError or ValueError if there is none of this name."""
        self._tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        self._model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype="auto").eval()
        self.context = min(context, getattr(self._model.config, "max_position_embeddings", None) or context)
        ends = self._model.generation_config.eos_token_id
        ends = {*(ends if isinstance(ends, list) else [ends]), self._tokenizer.eos_token_id} - {None}
        self._end_ids = sorted(ends)

    def count_tokens(self, prompt: str) -> int:
        return len(self._encode(prompt))

    def _encode(self, prompt: str) -> list[int]:
        if self._tokenizer.chat_template:
            message = [{"role": "user", "content": prompt}]
            return list(self._tokenizer.apply_chat_template(message, add_generation_prompt=True))
        return list(self._tokenizer.encode(f"{prompt}\n\n"))

    @torch.inference_mode()
    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        prompts = [self._encode(request.prompt) for request in requests]
        longest = max(map(len, prompts))
        tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        max_tokens = max(request.max_tokens for request in requests)
        config = GenerationConfig(max_new_tokens=max_tokens, eos_token_id=self._end_ids or None, pad_token_id=0)
        output = self._model.generate(
            tokens,
            config,
            attention_mask=mask,
            logits_processor=[SeededSampler(requests)],
            use_model_defaults=False,  # such as a repetition penalty: campaigns set the sampling parameters
        )
        rows = output[:, longest:].tolist()
        return [self._decode(row[: request.max_tokens]) for row, request in zip(rows, requests, strict=True)]

    def _decode(self, tokens: list[int]) -> Completion:
        length = next((i for i, token in enumerate(tokens) if token in self._end_ids), len(tokens))
        text = self._tokenizer.decode(tokens[:length], skip_special_tokens=True)
        return Completion(text, "stop" if length < len(tokens) else "length", length)


class SeededSampler(LogitsProcessor):
    """Samples each row's token with its own temperature, top-p and seed, and masks all others for greedy search."""

    def __init__(self, requests: Sequence[CompletionRequest]) -> None:
        self._rows = [(request, torch.Generator().manual_seed(request.seed % 2**63)) for request in requests]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores`: [rows, vocabulary]."""
        chosen = torch.full_like(scores, -torch.inf)
        for row, (request, rng) in enumerate(self._rows):
            chosen[row, sample_token(scores[row].float(), request, rng)] = 0
        return chosen


def sample_token(logits: Tensor, request: CompletionRequest, rng: torch.Generator) -> int:
    """Return one token id. `logits`: [vocabulary]."""
    if request.temperature == 0:
        return int(logits.argmax())
    probabilities, order = (logits / request.temperature).softmax(-1).sort(descending=True)
    probabilities[probabilities.cumsum(-1) - probabilities >= request.top_p] = 0  # the likeliest token always stays
    if request.top_k:
        probabilities[request.top_k :] = 0
    return int(order[torch.multinomial(probabilities, 1, generator=rng)])
