"""What can be wrong with a model that is being scored. The docstring of each is the sentence its author sees.

The sentences are fixed: nothing that a model prints or says travels back through them, so a model cannot use its own
failure to tell its author something about the held-out text.
"""

from __future__ import annotations

import inspect


class Misbehaved(Exception):
    """The model misbehaved while it was scored."""

    def __init__(self, detail: str = "") -> None:
        """`detail`: our own numbers (never the model's words), for the log of a trusted node."""
        self.sentence = inspect.cleandoc(type(self).__doc__ or "").replace("\n", " ")
        self.detail = detail
        super().__init__(self.sentence)


class CouldNotLoad(Misbehaved):
    """The model could not be loaded from its checkpoint."""


class Raised(Misbehaved):
    """The model raised an error when it was asked for logits."""


class TimedOut(Misbehaved):
    """The model did not answer in time."""


class Died(Misbehaved):
    """The model's process ended in the middle of scoring."""


class OverTheLimits(Misbehaved):
    """The model's process went over its limits of memory, processes or time."""


class Garbled(Misbehaved):
    """The model's process answered out of turn, or with something that is no answer."""


class WrongShape(Misbehaved):
    """The model returned something other than one row of logits for each token of its input."""


class NotFinite(Misbehaved):
    """The model returned NaN or infinite logits."""


class ChangedItsAnswer(Misbehaved):
    """The model changed its logits after it had handed them over."""


class Unsteady(Misbehaved):
    """The model answers the same text differently in another order or other company: it keeps state, or is random."""


class LooksAhead(Misbehaved):
    """The model's predictions depend on tokens that come after them: it looks at the future."""


class TellsProbesApart(Misbehaved):
    """The model treats a text that ends early differently from a whole one: it tells our probes from the real thing."""


class Recites(Misbehaved):
    """The model knows the held-out text by heart: one changed word far back, and what it knew so well is forgotten."""


class KnowsTheText(Misbehaved):
    """The entry's files contain held-out text."""


class CarriesData(Misbehaved):
    """The entry's files carry more data than an architecture needs: long unbroken words or endless numbers."""


class TooFarOff(Misbehaved):
    """The model finds a benchmark's answers so unlikely that the benchmark's figures overflow."""
