"""Windows, probes and batches: every token once, and no target shown early."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.scoring import cheat_detection
from trainer.scoring.windows import TextWindow, batch_rows, cut_windows, pad_rows, round_row_length

END = 0


def windows_of(lengths: list[int], row: int) -> list[TextWindow]:
    rng = np.random.default_rng(0)
    return [window for i, n in enumerate(lengths) for window in cut_windows(i, rng.integers(1, 99, n), END, row)]


@given(count=st.integers(1, 100), row=st.integers(1, 20))
def test_windows_predict_every_token_once(count, row):
    tokens = np.arange(1, count + 1)
    windows = cut_windows(0, tokens, END, row)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    for window in windows:
        assert len(window.inputs) == len(window.targets) <= row
        assert (window.targets - window.inputs).tolist() == [1] * len(window)
    assert windows[0].inputs[0] == END


@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=8), seed=st.integers(0, 999))
@settings(max_examples=60)
def test_prefix_probe_never_contains_later_targets(lengths, seed):
    windows = windows_of(lengths, 16)
    places = np.cumsum([0] + [len(window) for window in windows])
    shown: dict[int, int] = {}
    probed_places = set()
    for probe in cheat_detection.build_prefix_probes(windows, random.Random(seed)):
        check, position = probe.observed[0]
        assert check == "prefix"
        assert len(probe.tokens) == position + 1
        document = windows[probe.window].document
        place = int(places[probe.window]) + position
        assert shown.get(document, -1) < place, "its target was in an earlier probe"
        # A window's first token is the last target of the one before.
        shown[document] = place - 1
        probed_places.add(place)
    assert len(probed_places) == min(cheat_detection.PREFIX_PROBES, sum(lengths))


def test_prefix_cuts_are_uniform_and_random():
    windows = windows_of([400, 800], 16)
    drawn = Counter(
        probe.observed[0][1]
        for seed in range(40)
        for probe in cheat_detection.build_prefix_probes(windows, random.Random(seed))
    )
    assert set(drawn) == set(range(16))
    assert max(drawn.values()) < 2 * min(drawn.values())


@pytest.mark.parametrize("seed", range(5))
def test_causality_probe_keeps_tokens_before_position(seed):
    windows = windows_of([100, 3, 1, 60], 16)
    probes = list(cheat_detection.build_causality_probes(windows, 99, random.Random(seed)))
    assert len(probes) == min(cheat_detection.CAUSALITY_PROBES, sum(len(window) > 1 for window in windows))
    for probe in probes:
        inputs = windows[probe.window].inputs
        (check, position), *before = probe.observed
        assert check == "causality"
        assert len(probe.tokens) == len(inputs)
        assert probe.tokens[: position + 1].tolist() == inputs[: position + 1].tolist()
        assert all(name == "before" and earlier < position for name, earlier in before)


@given(sizes=st.lists(st.sampled_from([4, 8, 12, 32]), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_batches_contain_every_row_once_and_fit(sizes, seed):
    groups = list(batch_rows(sizes, 64, random.Random(seed)))
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    for group in groups:
        assert len({sizes[i] for i in group}) == 1
        assert len(group) * sizes[group[0]] <= 64


@given(count=st.integers(1, 300), length=st.integers(1, 300))
def test_rounded_row_lengths_are_at_most_eight(count, length):
    if count <= length:
        assert count <= round_row_length(count, length) <= length
        assert len({round_row_length(n, length) for n in range(1, length + 1)}) <= 8


def test_rows_are_padded_on_the_right():
    block = pad_rows([np.array([5, 6]), np.array([7])], 3, END)
    assert block.tolist() == [[5, 6, END], [7, END, END]]
