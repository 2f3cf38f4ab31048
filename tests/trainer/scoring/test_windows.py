"""Windows: every token once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.scoring.windows import cut_windows, pad_rows

END = 0


@given(count=st.integers(1, 100), row=st.integers(1, 20))
def test_windows_predict_every_token_once(count, row):
    tokens = np.arange(1, count + 1)
    windows = cut_windows(0, tokens, END, row)
    assert np.concatenate([window.targets for window in windows]).tolist() == tokens.tolist()
    for window in windows:
        assert len(window.inputs) == len(window.targets) <= row
        assert (window.targets - window.inputs).tolist() == [1] * len(window)
    assert windows[0].inputs[0] == END


def test_rows_are_padded_on_the_right():
    block = pad_rows([np.array([5, 6]), np.array([7])], 3, END)
    assert block.tolist() == [[5, 6, END], [7, END, END]]
