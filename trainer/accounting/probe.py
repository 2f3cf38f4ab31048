"""Measure how fast this machine trains now: time training steps of a small fixed transformer.

    python -m trainer.accounting.probe --seconds 2 --json

A node runs it with each training run, so that seconds of different machines and hours are comparable. The work is
always the same: weights and tokens come from a fixed seed, and the loss of the second step is reported. Only torch is
imported, so it starts in two seconds.

Not covered: the speed of disks, of data loading, of GPUs other than the first; a machine that detects the probe.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.errors import ExitCode, print_error
from trainer.ops import devices
from trainer.protocol import ProbeReading, ProbeSpec

LAYERS = 2
HEAD = 64
VOCABULARY = 4096
SEED = 20260101
WARMUP_STEPS = 2
MIN_STEPS = 5  # timed even if they take longer than `seconds`: the median of fewer steps is unreliable
LEARNING_RATE = 0.01


class ProbeTransformer:
    """Pre-norm blocks of attention and a 4x MLP with plain gradient descent: nothing needs tuning."""

    def __init__(self, width: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(SEED)

        def weights(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(device).requires_grad_()

        self.heads = width // HEAD
        self.embedding = weights(VOCABULARY, width)
        shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        self.blocks = [[weights(*shape) for shape in shapes] for _ in range(LAYERS)]
        self.parameters = [self.embedding, *(matrix for block in self.blocks for matrix in block)]

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean nats per token of `[B, T + 1]`."""
        x = F.embedding(tokens[:, :-1], self.embedding)
        for qkv, out, up, down in self.blocks:
            x = x + F.linear(self.attention(F.linear(rms_norm(x), qkv)), out)
            x = x + F.linear(F.relu(F.linear(rms_norm(x), up)).square(), down)
        logits = F.linear(rms_norm(x), self.embedding)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def attention(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(-1, (3 * self.heads, HEAD)).transpose(1, 2).chunk(3, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def step(self, tokens: Tensor) -> float:
        """Train one step; return the loss before it. Synchronizes with the device."""
        loss = self.loss(tokens)
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(self.parameters, gradients, alpha=-LEARNING_RATE)
        return loss.item()


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def measure(probe: ProbeSpec, device: torch.device | None = None) -> ProbeReading:
    """Time steps for `probe.seconds`, at least `MIN_STEPS`."""
    device = device or torch.device("cuda" if devices.is_gpu_available() else "cpu")
    if probe.threads is not None:
        torch.set_num_threads(probe.threads)
    model = ProbeTransformer(probe.width, device)
    shape = (probe.batch, probe.sequence_length + 1)
    tokens = torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(SEED)).to(device)
    half = probe.precision == "bf16" or (probe.precision == "auto" and device.type == "cuda")
    with torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext():
        for _ in range(WARMUP_STEPS):
            loss = model.step(tokens)
        times = time_steps(model, tokens, probe.seconds)
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4)
    return ProbeReading(
        tokens_per_second=probe.batch * probe.sequence_length / median,
        spread=(high - low) / median,
        steps=len(times),
        loss=loss,
    )


def time_steps(model: ProbeTransformer, tokens: Tensor, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_STEPS or time.perf_counter() < until:
        started = time.perf_counter()
        model.step(tokens)
        devices.synchronize(tokens.device)  # the update comes after the loss
        times.append(time.perf_counter() - started)
    return times


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(parse_arguments(argv))
    as_json = options.pop("json")
    try:
        probe = ProbeSpec(**options)
    except ValueError as error:
        lines = str(error).splitlines()
        message = f"--{lines[1].replace('_', '-')}: {lines[2].strip().partition(' [')[0]}"
        return print_error("trainer.accounting.probe", message, ExitCode.USER_ERROR)
    reading = measure(probe)
    if as_json:
        sys.stdout.write(reading.model_dump_json() + "\n")
    else:
        sys.stdout.write(
            f"{reading.tokens_per_second:,.0f} tokens/s, spread {reading.spread:.1%} over {reading.steps} steps\n"
        )
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="trainer.accounting.probe", description="Measure how fast this machine trains."
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="duration (%(default)s)")
    parser.add_argument("--width", type=int, default=256, help="of the model, a multiple of 64 (%(default)s)")
    parser.add_argument("--sequence-length", type=int, default=256, help="tokens in a row (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="rows in a step (%(default)s)")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="(%(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads of torch")
    parser.add_argument("--json", action="store_true", help="a ProbeReading of trainer.protocol")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
