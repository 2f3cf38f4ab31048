"""Cheating models, each in a real sandbox, each caught with its own error."""

from __future__ import annotations

import pytest

from tests.support.scoring_models import needs_sandbox, score_in_sandbox, write_run
from trainer.scoring import misbehavior

pytestmark = needs_sandbox

PEEKS = "return self.push(self.honest(tokens), tokens, 5.0)"

PEEKS_AT_SOME = """
some = (torch.arange(tokens.shape[1]) % 5 == 0)[None, :, None]
return self.push(self.honest(tokens), tokens, 5.0, some)
"""

PEEKS_A_LITTLE = "return self.push(self.honest(tokens), tokens, 0.001)"

SEES_ALL = """
x = self.embedding(tokens)
return self.head(torch.tanh(x + x.mean(1, keepdim=True)))
"""

KNOWS_THE_LENGTH = """
logits = self.honest(tokens)
return self.push(logits, tokens, 5.0) if tokens.shape[1] == self.config.sequence_length else logits
"""

COUNTS_CALLS = """
self.calls += 1
return self.honest(tokens) * (1 + 0.01 * self.calls)
"""

REMEMBERS_TEXTS = """
logits = self.honest(tokens)
for row, line in zip(logits, tokens.tolist()):
    for i in range(len(line)):
        start = tuple(line[: i + 1])
        if start in self.seen:
            row[i, self.seen[start]] += 5
        if i + 1 < len(line):
            self.seen[start] = line[i + 1]
return logits
"""

LOOKS_AT_ITS_COMPANY = "return self.honest(tokens) + 0.1 * self.honest(tokens).mean(0, keepdim=True)"

ADDS_NOISE = "return self.honest(tokens) + 0.05 * torch.randn(self.config.vocabulary_size)"

CHEATS = {
    "peeks at the next token": (PEEKS, "", misbehavior.NonCausalError),
    "peeks at every fifth position": (PEEKS_AT_SOME, "", misbehavior.NonCausalError),
    "peeks and uses next to nothing of it": (PEEKS_A_LITTLE, "", misbehavior.NonCausalError),
    "sees the whole text": (SEES_ALL, "", misbehavior.NonCausalError),
    "peeks only in texts of full length": (KNOWS_THE_LENGTH, "", misbehavior.ProbeDetectedError),
    "counts its calls": (COUNTS_CALLS, "self.calls = 0", misbehavior.NonDeterministicError),
    "remembers the texts it saw": (REMEMBERS_TEXTS, "self.seen = {}", misbehavior.NonDeterministicError),
    "looks at what shares its batch": (LOOKS_AT_ITS_COMPANY, "", misbehavior.NonDeterministicError),
    "is random": (ADDS_NOISE, "", misbehavior.NonDeterministicError),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_model_raises_its_error(name, tmp_path):
    forward, setup, error_type = CHEATS[name]
    with pytest.raises(misbehavior.ModelMisbehaviorError) as caught:
        score_in_sandbox(write_run(tmp_path / "run", forward, setup))
    assert type(caught.value) is error_type, caught.value.detail
