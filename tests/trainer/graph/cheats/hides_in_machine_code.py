"""Hands an address to a library of its own, through ctypes."""

from __future__ import annotations

import ctypes

import honest
from honest import Config, recipe
from torch import Tensor

__all__ = ["Config", "Model", "recipe"]


class Model(honest.Model):
    def features(self, tokens: Tensor) -> Tensor:
        x = super().features(tokens)
        ctypes.CDLL(None).memcpy(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(x.data_ptr()), 4)
        return x
