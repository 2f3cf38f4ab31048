"""Convert weights to a later version of an architecture so that the outputs stay (nearly) the same.

One function per family, in `CONVERTERS`. It takes tensors and the fields of the Config before and after, and returns
the tensors for the new model; `trainer.training.finetune` loads all that fit.

RWKV-5 goes from 5.0 to 5.1 to 5.2 (`trainer.models.rwkv5`), never back. What each step does to a block:
- the bonus's logarithm becomes the bonus, exactly;
- the gate silu(Wg x) begins at 1, see `add_neutral_gate`; otherwise only LN1 changes, slightly and where needed;
- the channel mix has an eighth fewer units, see `narrow_channel_mix`: the only lossy step;
- a head's decay and bonus become those of each of its channels, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.store import CheckpointError
from trainer.models.rwkv5 import HEAD, Config

Tensors = dict[str, Tensor]

SILU_INVERSE_OF_1 = 1.2784645427610738  # silu of this is 1
MIN_CONSTANT = 0.02  # minimum constant part of LN1's output, relative to a channel's standard deviation of 1
MIN_WEIGHT = 1e-2  # minimum magnitude of a weight of LN1, since the gate divides by it


def convert_rwkv5(tensors: Mapping[str, Tensor], before: Mapping[str, Any], after: Mapping[str, Any]) -> Tensors:
    """Return RWKV-5's weights for a later version; raise `CheckpointError` for an earlier one."""
    old, new = float(before["version"]), float(after["version"])
    if new < old:
        raise CheckpointError(f"--from a model of version {old}: it can only be converted to a later one, not {new}")
    converted = {name: tensor.float() for name, tensor in tensors.items()}
    units = Config(**after).hidden
    blocks = {name.partition(".att.")[0] + "." for name in tensors if ".att." in name}
    for block in sorted(blocks):
        if old == 5.0 < new:
            converted[block + "att.time_faaaa"] = converted.pop(block + "att.time_first").exp()
            add_neutral_gate(converted, block)
            narrow_channel_mix(converted, block, units)
        if old < 5.2 <= new:
            for name in ("time_decay", "time_faaaa"):
                converted[f"{block}att.{name}"] = converted[f"{block}att.{name}"].view(-1, 1).repeat(1, HEAD)
    return converted


def add_neutral_gate(tensors: Tensors, block: str) -> None:
    """Add a gate that is 1 for every token, to rounding.

    The gate has no bias, but its input has: LN1 returns w n + b, where n sums to zero over the channels. So the product
    of the input with the row 1/w is sum(b/w) for every token, and rows a = c / (w sum(b/w)) make the gate silu(c) = 1.
    (time_mix_g = 1 makes the gate depend on the current token only, since the first one is preceded by a zero.)
    If the biases nearly cancel, such rows would be huge, and the gate would jump with the first update of b. Then at
    most `MIN_CONSTANT` x w is added to b, the same shift for every channel before LN1's weight. Weights near zero are
    moved to `MIN_WEIGHT`.
    """
    weight, bias = tensors[block + "ln1.weight"], tensors[block + "ln1.bias"]
    safe = torch.where(weight.abs() < MIN_WEIGHT, torch.full_like(weight, MIN_WEIGHT).copysign(weight), weight)
    tensors[block + "ln1.weight"] = safe
    constant = (bias.double() / safe).mean()
    if abs(constant) < MIN_CONSTANT:
        target = math.copysign(MIN_CONSTANT, constant)
        tensors[block + "ln1.bias"] = bias + (target - float(constant)) * safe
        constant = (tensors[block + "ln1.bias"].double() / safe).mean()
    row = SILU_INVERSE_OF_1 / (len(safe) * constant * safe.double())
    tensors[block + "att.gate.weight"] = row.float().repeat(len(safe), 1)
    tensors[block + "att.time_mix_g"] = torch.ones(1, 1, len(safe))


def narrow_channel_mix(tensors: Tensors, block: str, units: int) -> None:
    """Keep the `units` of the channel mix that contribute most, and add the average contribution of the others.

    A unit's contribution is its column of `value` times relu(z)^2; z is assumed normal, with the mean and variance that
    LN2's bias and weight give it (independent inputs). The average of the dropped units is added through all kept
    ones, weighted by mean over variance, because that weighted sum is nearly constant.
    """
    key, value = tensors[block + "ffn.key.weight"], tensors[block + "ffn.value.weight"]
    if len(key) <= units:
        return
    ratio = tensors[block + "ffn.time_mix_k"].flatten()
    spread = (ratio.square() + (1 - ratio).square()).sqrt() * tensors[block + "ln2.weight"]
    mean, squares = compute_relu2_moments(key @ tensors[block + "ln2.bias"], (key * spread).norm(dim=1))
    contributions = value.norm(dim=0) * squares.sqrt()
    selected = contributions.topk(units).indices.sort().values
    dropped = torch.ones(len(key), dtype=torch.bool).index_fill_(0, selected, False)
    shares = mean[selected] / (squares[selected] - mean[selected].square()).clamp(min=1e-12)
    shares = shares / (shares @ mean[selected]).clamp(min=1e-12)
    tensors[block + "ffn.key.weight"] = key[selected].contiguous()
    tensors[block + "ffn.value.weight"] = value[:, selected] + torch.outer(value[:, dropped] @ mean[dropped], shares)


def compute_relu2_moments(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of relu(z)^2 and of its square for normal z."""
    deviation = deviation.clamp(min=1e-12)
    t = mean / deviation
    below = torch.special.ndtr(t)
    density = (-t.square() / 2).exp() / math.sqrt(2 * math.pi)
    second = deviation**2 * ((t**2 + 1) * below + t * density)
    fourth = deviation**4 * ((t**4 + 6 * t**2 + 3) * below + (t**3 + 5 * t) * density)
    return second, fourth


CONVERTERS: dict[str, Callable[[Mapping[str, Tensor], Mapping[str, Any], Mapping[str, Any]], Tensors]] = {
    "rwkv5": convert_rwkv5
}
"""Families whose weights can be converted to a later `version`, a field of their Config."""


def find_version_change(family: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the versions before and after, or None if they are equal."""
    if family not in CONVERTERS or before["version"] == after["version"]:
        return None
    return before["version"], after["version"]
