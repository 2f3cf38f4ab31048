"""Uses a kernel without a registered FLOP formula."""

from __future__ import annotations

import honest
import torch
from honest import Config, recipe
from torch import Tensor

__all__ = ["Config", "Model", "recipe"]


@torch.library.custom_op("cheats::product", mutates_args=())
def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


product.register_autograd(lambda context, gradient: (gradient, None))


class Model(honest.Model):
    def features(self, tokens: Tensor) -> Tensor:
        return product(super().features(tokens), self.mix.weight)
