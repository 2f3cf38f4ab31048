"""Project a night on one H100 from public runs, the predicted speed and the measured multiplier.

    python -m benchmarks.projection [--peers benchmarks/results/peers.json]

Loss as a function of compute is a straight line in ln(compute) through nanochat's record run, plus a penalty for a
model that is not the best size for its compute. Each input has a 95 % interval. The inputs' errors are taken as
independent and log-normal, so half-widths in logarithms add as squares.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parent / "results" / "peers.json"
HOURS = 24.0
VOCABULARY, SEQUENCE_LENGTH = 32_768, 2_048

RECORD_FLOPS, RECORD_DEPTH, RECORD_CORE, RECORD_BITS = 2.79e19, 24, 0.2626, 0.718
"""nanochat's run of March 2026: 13.2 H100-hours, CORE of GPT-2, bits per byte of ClimbMix."""
TOKENS_PER_PARAMETER = 12.0  # at the best size, parameters of matrices and head (nanochat's default)
SIZE_EXPONENT = 0.30
"""alpha = beta of Chinchilla's law: 0.28 to 0.37 in arXiv 2203.15556 and 2404.10102."""


@dataclass(frozen=True)
class Input:
    """A value and its 95 % interval, and where they are from."""

    name: str
    value: float
    low: float
    high: float
    source: str

    @property
    def spread(self) -> float:
        """Half-width of the interval of its logarithm."""
        return math.log(self.high / self.low) / 2


MEASURED = "[measured](gpu.md) on an H200, less what a slower memory may cost"
RECIPE = "multiplier of our recipe over nanochat's"
SLOPE = Input(
    "bits per byte for a factor e of compute", 0.034, 0.028, 0.041, "public runs of nanochat; interval assumed"
)
CORE_SLOPE = Input("CORE for a factor e of compute", 0.034, 0.028, 0.041, "public runs of nanochat; interval assumed")
CORE_NOISE = Input("compute that CORE's noise is worth", 1.0, 0.86, 1.16, "0.005 of CORE, public runs of nanochat")
BF16_SPEED = Input("tokens/s at d24, bf16", 106_000, 98_000, 112_000, f"{MEASURED}: assumed; high: as measured")
FP8_SPEED = Input(
    "tokens/s at d24, fp8",
    127_000,
    110_000,
    134_000,
    "that times 1.195, [measured](gpu.md) with 8 layers; interval assumed",
)
FP8_QUALITY = Input(
    "multiplier of fp8",
    0.90,
    0.85,
    0.95,
    "public: 1.17 times the tokens/s, 1.05 times at equal quality; interval assumed",
)
MIXTURE = Input("multiplier of a mixture in FLOPs", 4.0, 2.0, 5.0, "Marin's report at 4e19 FLOPs; interval assumed")
MIXTURE_SPEED = Input("FLOP/s of a mixture over dense", 0.6, 0.4, 0.9, "assumed")
UNKNOWN_RECIPE = Input(RECIPE, 1.0, 0.9, 1.1, "assumed")
TRANSFER = Input("change of that multiplier up to a night's size", 1.0, 0.85, 1.18, "assumed")


@dataclass(frozen=True)
class Configuration:
    name: str
    depth: int
    speed: Input
    factors: tuple[Input, ...] = ()  # on the compute of nanochat's recipe that the run is worth


CONFIGURATIONS = (
    *(Configuration(f"d{depth}, bf16", depth, BF16_SPEED) for depth in (20, 22, 24, 26)),
    Configuration("d24, fp8", 24, FP8_SPEED, (FP8_QUALITY,)),
    Configuration("mixture of d24's FLOPs, bf16", 24, BF16_SPEED, (MIXTURE, MIXTURE_SPEED)),
)


@dataclass(frozen=True)
class Projection:
    """Medians and 95 % intervals: (value, low, high)."""

    name: str
    hours: tuple[float, float, float]  # to CORE 0.2626
    core: tuple[float, float, float]  # after a night
    bits_per_byte: tuple[float, float, float]


def count_scaling_parameters(depth: int) -> float:
    """Return the parameters of matrices and head."""
    width = 64 * depth
    return 12 * depth * width**2 + VOCABULARY * width


def count_flops_per_token(depth: int) -> float:
    """Return training FLOPs with windows of a quarter row in three of four layers, as nanochat counts."""
    attended = (3 * SEQUENCE_LENGTH / 4 + SEQUENCE_LENGTH) / 4
    return 6 * count_scaling_parameters(depth) + 12 * depth * 64 * depth * attended


def compute_size_penalty(depth: int, flops: float) -> float:
    """Return the part of compute, as a logarithm, that a size loses to the best one for these FLOPs.

    With equal exponents a, L = R/2 (k^a + k^-a) at the best size times k, and dL/dlnC = -a R / 2: that is
    (k^a + k^-a - 2) / a of lnC.
    """
    tokens = flops / count_flops_per_token(depth)
    excess = math.log(count_scaling_parameters(depth) * TOKENS_PER_PARAMETER / tokens) / 2  # ln k
    return 2 * (math.cosh(SIZE_EXPONENT * excess) - 1) / SIZE_EXPONENT


def compute_log_gain(depth: int, flops: float, multiplier: float) -> float:
    """Return ln of the compute that a run is worth over the record run's, sizes considered."""
    record = compute_size_penalty(RECORD_DEPTH, RECORD_FLOPS)
    return math.log(flops * multiplier / RECORD_FLOPS) - compute_size_penalty(depth, flops) + record


def project(configuration: Configuration, recipe: Input) -> Projection:
    factors = (recipe, TRANSFER, *configuration.factors)
    multiplier = math.prod(factor.value for factor in factors)
    spread = math.hypot(configuration.speed.spread, *(factor.spread for factor in factors))
    flops_per_hour = configuration.speed.value * count_flops_per_token(RECORD_DEPTH) * 3600  # at every depth
    gain = compute_log_gain(configuration.depth, flops_per_hour * HOURS, multiplier)
    hours = find_hours(configuration.depth, flops_per_hour, multiplier)
    noise = math.hypot(spread, CORE_NOISE.spread)
    core_error = math.hypot(CORE_SLOPE.value * noise, CORE_SLOPE.value * gain * CORE_SLOPE.spread)
    bits_error = math.hypot(SLOPE.value * spread, SLOPE.value * gain * SLOPE.spread)
    core, bits = RECORD_CORE + CORE_SLOPE.value * gain, RECORD_BITS - SLOPE.value * gain
    return Projection(
        configuration.name,
        (hours, hours * math.exp(-noise), hours * math.exp(noise)),
        (core, core - core_error, core + core_error),
        (bits, bits - bits_error, bits + bits_error),
    )


def find_hours(depth: int, flops_per_hour: float, multiplier: float) -> float:
    """Return the hours after which a run of its own schedule is worth the record run, by bisection."""
    low, high = 0.1, 1000.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        if compute_log_gain(depth, flops_per_hour * middle, multiplier) < 0:
            low = middle
        else:
            high = middle
    return high


def read_recipe(file: Path) -> Input:
    """Return our default recipe's multiplier over nanochat's in FLOPs at the largest measured size."""
    rows = json.loads(file.read_text()).get("multipliers", []) if file.is_file() else []
    found = [row for row in rows if row["entry"] == "gpt" and row["flops"].get("low") is not None]
    if not found:
        return UNKNOWN_RECIPE
    row = found[-1]
    source = f"[measured](peers.md) at {row['size']}, {row['budget']:.3g} FLOPs"
    return Input(RECIPE, row["flops"]["cm"], row["flops"]["low"], row["flops"]["high"], source)


def format_projections(recipe: Input) -> str:
    """Return the table of docs/explanation/projection.md."""
    lines = ["| one H100 | hours to CORE 0.2626 | CORE after 24 h | bits per byte after 24 h |", "|---|---|---|---|"]
    for configuration in CONFIGURATIONS:
        found = project(configuration, recipe)
        cells = (found.name, *map(format_interval, (found.hours, found.core, found.bits_per_byte), (1, 3, 3)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_inputs(recipe: Input) -> str:
    """Return the table of benchmarks/results/projection.md."""
    recipes = (recipe, TRANSFER, FP8_QUALITY, MIXTURE, MIXTURE_SPEED)
    lines = ["| input | value, 95 % interval | from |", "|---|---|---|"]
    for each in (BF16_SPEED, FP8_SPEED, *recipes, SLOPE, CORE_SLOPE, CORE_NOISE):
        digits = 0 if each.value > 100 else 3 if each.value < 0.1 else 2
        interval = format_interval((each.value, each.low, each.high), digits)
        lines.append(f"| {each.name} | {interval} | {each.source} |")
    return "\n".join(lines)


def format_interval(values: tuple[float, float, float], digits: int) -> str:
    value, low, high = (f"{each:,.{digits}f}" for each in values)
    return f"{value} ({low} to {high})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=PEERS, help="results of benchmarks.peers")
    recipe = read_recipe(parser.parse_args(argv).peers)
    sys.stdout.write(f"{format_projections(recipe)}\n\n{format_inputs(recipe)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
