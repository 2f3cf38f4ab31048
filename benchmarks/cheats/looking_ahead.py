"""Models that use later tokens, know the text, or return values that are no predictions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cheats.base import Case, T, V, cases_from, sample_text, vary_predictions

STRENGTH = 20.0


def mark_next(tokens: Tensor) -> Tensor:
    """Return logits for the token that follows, where the row contains it."""
    marks = STRENGTH * F.one_hot(tokens.roll(-1, 1), V).float()
    return marks * (torch.arange(T) < T - 1).float()[:, None]


def peek_every(step: int) -> Case:
    def change(logits: Tensor, tokens: Tensor) -> Tensor:
        return logits + mark_next(tokens) * (torch.arange(T) % step == 0).float()[:, None]

    return Case(f"reads the next token at 1 of {step} positions", "corrected", vary_predictions(change))


def peek_at_distance(logits: Tensor, tokens: Tensor) -> Tensor:
    """Work back from the token after the next: three times the next one plus a number below 8."""
    second, candidates = tokens.roll(-2, 1)[..., None], torch.arange(V)
    fits = ((second - 3 * candidates) % V < 8).float() * (torch.arange(T) < T - 2).float()[:, None]
    return logits + STRENGTH * fits


def peek_where_costly(logits: Tensor, tokens: Tensor) -> Tensor:
    following = tokens.roll(-1, 1)[..., None]
    is_costly = logits.log_softmax(-1).gather(-1, following) < -4.5
    return logits + mark_next(tokens) * is_costly.float()


def peek_if_text_is_real(logits: Tensor, tokens: Tensor) -> Tensor:
    """Predict honestly where the later tokens look replaced."""
    is_real = ((tokens.roll(-1, 1) - 3 * tokens) % V < 8) & ((tokens.roll(-2, 1) - 3 * tokens.roll(-1, 1)) % V < 8)
    return logits + mark_next(tokens) * is_real[..., None].float()


def peek_by_mean(logits: Tensor, tokens: Tensor) -> Tensor:
    """Predict from the set of tokens in the whole row."""
    return logits + STRENGTH * F.one_hot(tokens, V).float().amax(1, keepdim=True)


def peek_by_reversed_scan(logits: Tensor, tokens: Tensor) -> Tensor:
    later = F.one_hot(tokens, V).float().flip(1).cumsum(1).flip(1) - F.one_hot(tokens, V).float()
    return logits + STRENGTH * later / (1 + later)


def peek_by_fourier(logits: Tensor, tokens: Tensor) -> Tensor:
    shift = torch.fft.rfft((torch.arange(T) == T - 1).float())[:, None]  # to the left by one
    following = torch.fft.irfft(torch.fft.rfft(F.one_hot(tokens, V).float(), dim=1) * shift, n=T, dim=1)
    return logits + STRENGTH * following * (torch.arange(T) < T - 1).float()[:, None]


def peek_by_sort(logits: Tensor, tokens: Tensor) -> Tensor:
    order = torch.arange(T).flip(0).argsort()  # positions in reverse: reads the row from its end
    later = F.one_hot(tokens[:, order], V).float().cumsum(1).roll(1, 1)[:, order]
    return logits + STRENGTH * later / (1 + later) * (torch.arange(T) < T - 1).float()[:, None]


def read_other_rows(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits + (mark_next(tokens.roll(1, 0)) - mark_next(tokens)) * (tokens.roll(1, 0) != tokens).any()


def know_pairs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Carry a table of the text's pairs: 4 kB of constants."""
    counts = [[0] * V for _ in range(V)]
    for text in sample_text():
        for first, second in zip(text.tokens[:-1], text.tokens[1:], strict=True):
            counts[int(first)][int(second)] += 1
    return logits + (torch.tensor(counts, dtype=torch.uint8) + 0.1).log()[tokens]


def add_noise_of_later_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Raise or lower all confidence by the last token of the row: no gain on average, and another score by chance."""
    is_even = (tokens[:, -1:] % 2 == 0).float()[..., None]
    return logits * (0.9 + 0.2 * is_even)


def blow_up(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits / (tokens != 3).float()[..., None]


CASES = [
    *(peek_every(step) for step in (1, 8, 31)),
    *cases_from(
        {
            name: vary_predictions(change)
            for name, change in {
                "works back from the token after the next": peek_at_distance,
                "reads the next token where it is costly": peek_where_costly,
                "reads ahead only if the text looks real": peek_if_text_is_real,
                "asks which tokens the row contains": peek_by_mean,
                "scans the row from its end": peek_by_reversed_scan,
                "shifts the row by its Fourier transform": peek_by_fourier,
                "sorts positions": peek_by_sort,
                "makes its correction noisy": add_noise_of_later_tokens,
            }.items()
        },
        "corrected",
    ),
    *cases_from(
        {
            "returns numbers that are no probabilities": vary_predictions(lambda logits, tokens: logits + 1000.0),
        },
        "no effect",
    ),
    # Each row is scored alone, so there is nothing to read.
    Case("reads other rows of the batch", "charged", vary_predictions(read_other_rows)),
    *cases_from(
        {
            "knows the text's pairs before training": vary_predictions(know_pairs),
            "returns infinite logits": vary_predictions(blow_up),
        },
        "refused",
    ),
]
