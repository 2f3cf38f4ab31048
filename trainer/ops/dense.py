"""Dense connections: the residual stream as a learned sum of what all earlier blocks returned.

DenseFormer (Pagliardini et al., arXiv 2402.02622, section 3): with x_0 the embedding and x_i what block i returns, the
next block reads y_i = a_i0 x_0 + ... + a_ii x_i, one learned number per term, at the start y_i = x_i. MUDD (arXiv
2502.12170) computes the numbers from the stream at each position and separately for queries, keys, values and the
residual; this is its static form with one way. A model of depth d that mixes after each block reads d^2 / 2 streams and
keeps d of them until the last block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def build_dense_lambdas(depth: int) -> nn.Parameter:
    """Return the numbers `[depth, depth + 1]`: row i belongs to y_(i + 1), which takes the last block's output alone.

    Entries above the diagonal have no stream and no use.
    """
    return nn.Parameter(torch.cat((torch.zeros(depth, 1), torch.eye(depth)), dim=1))


def mix_streams(streams: Sequence[Tensor], lambdas: Tensor) -> Tensor:
    """Return the sum of the streams `[B, T, width]`, each times one of the first numbers of `lambdas [N]`.

    Read as numbers, the lambdas leave the streams' type as it is.
    """
    mixed = streams[0] * lambdas[0]
    for number, stream in enumerate(streams[1:], 1):
        mixed = mixed + stream * lambdas[number]
    return mixed
