"""What can be wrong with a model that is being scored. The docstring of each error is the sentence its author sees.

The sentences are fixed: nothing that the model's process writes is passed on, so a model cannot use its own failure to
reveal something about the held-out text.
"""

from __future__ import annotations

import inspect


class ModelMisbehaviorError(Exception):
    """The model misbehaved while it was scored."""

    def __init__(self, detail: str = "") -> None:
        """`detail`: our own numbers, never text from the model, for the log of a trusted node."""
        self.sentence = inspect.cleandoc(type(self).__doc__ or "").replace("\n", " ")
        self.detail = detail
        super().__init__(self.sentence)


class ModelLoadError(ModelMisbehaviorError):
    """The model could not be loaded from its checkpoint."""


class ModelRaisedError(ModelMisbehaviorError):
    """The model raised an error when it computed logits."""


class ModelTimeoutError(ModelMisbehaviorError):
    """The model did not answer in time."""


class ModelProcessDiedError(ModelMisbehaviorError):
    """The model's process ended in the middle of scoring."""


class ResourceLimitError(ModelMisbehaviorError):
    """The model's process exceeded its limits of memory, processes or time."""


class InvalidReplyError(ModelMisbehaviorError):
    """The model's process sent an unexpected or malformed reply."""


class LogitsShapeError(ModelMisbehaviorError):
    """The model returned something other than one row of logits for each token of its input."""


class NonFiniteLogitsError(ModelMisbehaviorError):
    """The model returned NaN or infinite logits."""


class LogitsChangedError(ModelMisbehaviorError):
    """The model changed its logits after it had returned them."""


class NonDeterministicError(ModelMisbehaviorError):
    """The model returns different logits for the same text in a different batch or order: it is stateful or random."""


class NonCausalError(ModelMisbehaviorError):
    """The model's predictions depend on tokens that come after them: it looks ahead."""


class ProbeDetectedError(ModelMisbehaviorError):
    """The model treats a text that ends early differently from a whole one: it detects the checks."""


class MemorizedError(ModelMisbehaviorError):
    """The model has memorized the held-out text: one changed early token ruins its later predictions."""


class ContaminationError(ModelMisbehaviorError):
    """The entry's files contain held-out text."""


class EmbeddedDataError(ModelMisbehaviorError):
    """The entry's files contain more data than an architecture needs: long unbroken words or thousands of numbers."""


class MetricOverflowError(ModelMisbehaviorError):
    """The model finds a benchmark's answers so unlikely that the benchmark's metrics overflow."""
