"""Adapter that lets lm-eval use a model process."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from trainer.scoring.logits import score_targets
from trainer.scoring.windows import batch_rows, cut_windows, pad_rows, round_row_length

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer
    from trainer.scoring.logits import LogitsSource

TokenizedRequest = tuple[tuple[str, str], list[int], list[int]]  # ((context, continuation), their tokens)


class LmEvalModel(TemplateLM):
    """Log-likelihoods from a model process. As in lm-eval's own models, a text that is too long is cut on the left."""

    def __init__(self, client: LogitsSource, tokenizer: Tokenizer, progress: Callable[[str, float], None]) -> None:
        super().__init__()
        self._client = client
        self._tokenizer = tokenizer
        self._progress = progress
        self._length = client.sequence_length

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self._tokenizer.encode(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: Sequence[TokenizedRequest], **kwargs: Any) -> list[tuple[float, bool]]:
        rows, counts = [], []
        for _, context, continuation in requests:
            row = np.array((context + continuation)[-(self._length + 1) :], np.int64)
            rows.append(row)
            counts.append(min(len(continuation), len(row) - 1))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(rows)
        sizes = [round_row_length(len(row) - 1, self._length) for row in rows]
        for group in batch_rows(sizes, self._client.max_tokens, random.Random(0)):
            logits = self._client.get_logits(
                pad_rows([rows[i][:-1] for i in group], sizes[group[0]], self.eot_token_id)
            )
            for i, row_logits in zip(group, logits, strict=True):
                end = len(rows[i]) - 1
                scores = score_targets(row_logits[end - counts[i] : end], rows[i][len(rows[i]) - counts[i] :])
                results[i] = float(scores.log_probabilities.sum()), bool(scores.greedy.all())
            self._progress("benchmarks", 0)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        """Score whole texts, in the same windows as bits per byte."""
        totals = []
        for request in requests:
            tokens = np.array(self._tokenizer.encode(request.args[0]), np.int64)
            windows = cut_windows(0, tokens, self.eot_token_id, self._length)
            pairs: list[TokenizedRequest] = [(("", ""), [int(w.inputs[0])], w.targets.tolist()) for w in windows]
            totals.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """Generate greedily, one text at a time: slow."""
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, settings: dict[str, Any]) -> str:
        stops = settings.get("until") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        tokens = [self.eot_token_id, *self._tokenizer.encode(context)]
        generated: list[int] = []
        text = ""
        while len(generated) < int(settings.get("max_gen_toks", 256)):
            logits = self._client.get_logits(np.array([(tokens + generated)[-self._length :]], np.int64))
            token = int(logits[0, -1].argmax())
            if token == self.eot_token_id:
                break
            generated.append(token)
            text = self._tokenizer.decode(generated)
            if found := [text.index(stop) for stop in stops if stop in text]:
                return text[: min(found)]
        return text
