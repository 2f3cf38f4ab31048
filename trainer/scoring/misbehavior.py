"""What can be wrong with a model that is being scored. The docstring of each is the sentence its author sees.

The sentences are fixed: nothing that a model prints or says travels back through them, so a model cannot use its own
failure to tell its author something about the held-out text.
"""

from __future__ import annotations

import inspect


class ModelMisbehaviorError(Exception):
    """The model misbehaved while it was scored."""

    def __init__(self, detail: str = "") -> None:
        """`detail`: our own numbers (never the model's words), for the log of a trusted node."""
        self.sentence = inspect.cleandoc(type(self).__doc__ or "").replace("\n", " ")
        self.detail = detail
        super().__init__(self.sentence)


class ModelLoadError(ModelMisbehaviorError):
    """The model could not be loaded from its checkpoint."""


class ModelRaisedError(ModelMisbehaviorError):
    """The model raised an error when it was asked for logits."""


class ModelTimeoutError(ModelMisbehaviorError):
    """The model did not answer in time."""


class ModelProcessDiedError(ModelMisbehaviorError):
    """The model's process ended in the middle of scoring."""


class ResourceLimitError(ModelMisbehaviorError):
    """The model's process went over its limits of memory, processes or time."""


class InvalidReplyError(ModelMisbehaviorError):
    """The model's process answered out of turn, or with something that is no answer."""


class LogitsShapeError(ModelMisbehaviorError):
    """The model returned something other than one row of logits for each token of its input."""


class NonFiniteLogitsError(ModelMisbehaviorError):
    """The model returned NaN or infinite logits."""


class LogitsChangedError(ModelMisbehaviorError):
    """The model changed its logits after it had handed them over."""


class NonDeterministicError(ModelMisbehaviorError):
    """The model answers the same text differently in another order or other company: it keeps state, or is random."""


class NonCausalError(ModelMisbehaviorError):
    """The model's predictions depend on tokens that come after them: it looks at the future."""


class ProbeDetectedError(ModelMisbehaviorError):
    """The model treats a text that ends early differently from a whole one: it tells our probes from the real thing."""


class MemorizedError(ModelMisbehaviorError):
    """The model knows the held-out text by heart: one changed word far back, and what it knew so well is forgotten."""


class ContaminationError(ModelMisbehaviorError):
    """The entry's files contain held-out text."""


class EmbeddedDataError(ModelMisbehaviorError):
    """The entry's files carry more data than an architecture needs: long unbroken words or endless numbers."""


class MetricOverflowError(ModelMisbehaviorError):
    """The model finds a benchmark's answers so unlikely that the benchmark's figures overflow."""
