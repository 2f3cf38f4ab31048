"""Adapter that lets lm-eval use a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from trainer.scoring.model_scorer import score_answer

if TYPE_CHECKING:
    from trainer.data.tokenizer import Tokenizer
    from trainer.scoring.model_scorer import ModelScorer

TokenizedRequest = tuple[tuple[str, str], list[int], list[int]]  # ((context, continuation), their tokens)


class LmEvalModel(TemplateLM):
    """Log-likelihoods from a scorer. As in lm-eval's own models, a text that is too long is cut on the left."""

    def __init__(self, scorer: ModelScorer, tokenizer: Tokenizer, progress: Callable[[str, float], None]) -> None:
        super().__init__()
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._progress = progress
        self._length = scorer.sequence_length
        self._rng = np.random.default_rng()
        self._text: np.ndarray | None = None  # tokens of the last requests that were scored with later tokens
        self.replaces_later_tokens = False
        """Whether each token of a continuation is scored in a pass of its own, with every later token replaced.

        They are replaced by random tokens of the requests before: those of a few requests would name an answer.
        """

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.end_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self._tokenizer.encode(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: Sequence[TokenizedRequest], **kwargs: Any) -> list[tuple[float, bool]]:
        rows = [np.array((context + tokens)[-(self._length + 1) :], np.int64) for _, context, tokens in requests]
        if self._text is None or not self.replaces_later_tokens:
            self._text = np.concatenate(rows)
        rng = self._rng if self.replaces_later_tokens else None
        results = []
        for number, (row, (_, _, continuation)) in enumerate(zip(rows, requests, strict=True), 1):
            positions = np.arange(len(row) - 1)[-len(continuation) :]
            scores = score_answer(self._scorer, row, positions, self._text, self.eot_token_id, rng)
            results.append((-float(scores.nats.sum()), bool(scores.is_greedy.all())))
            self._progress("benchmarks", number / len(rows))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        raise NotImplementedError("Whole texts are scored by `dailytrain score --corpus`, corrected for later tokens.")

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        raise NotImplementedError("No task of the suite generates text.")
