"""Seconds of a score, from passes, FLOPs and the speed of a device. Standard library only: the site uses it.

Text is counted in fp32, benchmarks on a GPU with TF32 products: a score has them where they change its text's loss by
less than a tenth of its error. The limit counts all in fp32. The shares of the peak are assumed, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.accounting.peak_flops import PEAK_FLOPS, find_gpu_name
from trainer.accounting.training_size import ModelSize

FP32_FLOPS = {
    "B200": 75e12,
    "H200 NVL": 60e12,
    "H200": 67e12,
    "GH200": 67e12,
    "H100 NVL": 60e12,
    "H100 PCIe": 51e12,
    "H100": 67e12,
    "H800": 67e12,
    "H20": 44e12,
    "A100": 19.5e12,
    "A800": 19.5e12,
    "A30": 10.3e12,
    "A40": 37e12,
    "A10G": 31e12,
    "A10": 31e12,
    "L40S": 91e12,
    "L40": 90e12,
    "L4": 30e12,
    "RTX PRO 6000": 125e12,
    "RTX 6000 Ada": 91e12,
    "RTX 5000 Ada": 65e12,
    "RTX 4000 Ada": 26e12,
    "RTX 4000 SFF Ada": 19e12,
    "RTX A6000": 38e12,
    "RTX A5000": 27e12,
    "RTX A4000": 19e12,
    "V100": 15.7e12,
    "T4": 8.1e12,
    "TITAN RTX": 16e12,
    "RTX 2080 Ti": 13e12,
}
"""fp32 FLOP/s without tensor cores, from NVIDIA's data sheets. GeForce cards since Ampere: half of `PEAK_FLOPS`."""
WITHOUT_TF32 = ("V100", "T4", "TITAN RTX", "RTX 2080 Ti")

CPU_FLOPS = 50e9
"""FLOP/s of a slow CPU. Two cores of the development machine reach 180e9 in fp32
(benchmarks/results/training-speed.md)."""
SLOWEST_SCORERS = ((18e9, "RTX 4060 Ti"), (26e9, "RTX 3090"), (50e9, "RTX A6000"))
"""Memory that a score needs at most, and the GPU whose time is then its limit. Above: an A100."""
FP32_SHARE, TF32_SHARE = 0.5, 0.25
"""Shares of the peak that matrix products of a row reach without torch.compile."""
PASS_SECONDS = 0.01  # on a GPU, beside the products: kernel launches and the comparison of all weights; a guess
START_SECONDS = 120.0  # release, weights, text, untrained model: a guess
LIMIT_FACTOR = 2.0  # of the time on the slowest scorer
MIN_LIMIT_SECONDS = 3600.0
MAX_CPU_SECONDS = 86_400.0


@dataclass(frozen=True)
class ScoringWork:
    """Passes of a score, and the FLOPs of each."""

    pass_flops: float
    text_passes: float
    suite_passes: float

    def estimate_seconds(self, gpu: str) -> float | None:
        """Return the seconds on a GPU by its driver's name, or on a CPU if it is empty; None for an unknown GPU."""
        if not gpu:
            return START_SECONDS + self.pass_flops * (self.text_passes + self.suite_passes) / CPU_FLOPS
        name = find_gpu_name(gpu)
        if name is None:
            return None
        fp32, tf32 = get_fp32_flops(name), get_tf32_flops(name)
        suite = max(FP32_SHARE * fp32, TF32_SHARE * tf32)
        seconds = START_SECONDS + PASS_SECONDS * (self.text_passes + self.suite_passes)
        return seconds + self.pass_flops * (self.text_passes / (FP32_SHARE * fp32) + self.suite_passes / suite)

    def compute_limit(self, gpu: str) -> float:
        """Return the wall seconds of a score job, where `gpu` is the slowest one that may score; empty: a CPU."""
        slowest = ScoringWork(self.pass_flops, self.text_passes + self.suite_passes, 0).estimate_seconds(gpu)
        assert slowest is not None, "a GPU of the table"
        limit = max(LIMIT_FACTOR * slowest, MIN_LIMIT_SECONDS)
        return limit if gpu else min(limit, MAX_CPU_SECONDS)


def choose_slowest_scorer(memory_bytes: float) -> str:
    """Return the slowest GPU that is expected to score a model with so much memory."""
    return next((gpu for limit, gpu in SLOWEST_SCORERS if memory_bytes <= limit), "A100")


def get_fp32_flops(name: str) -> float:
    return FP32_FLOPS.get(name, PEAK_FLOPS[name] / 2)


def get_tf32_flops(name: str) -> float:
    """Return the FLOP/s of products in TF32, half of those in bf16."""
    return get_fp32_flops(name) if name in WITHOUT_TF32 else PEAK_FLOPS[name] / 2


def compute_pass_flops(size: ModelSize, sequence_length: int) -> float:
    """Return the FLOPs of a pass over one row with all its logits. Attention counts all pairs, as it is computed."""
    head = size.width * size.vocabulary_size
    if size.family == "gpt":
        attention = 4 * sequence_length**2 * size.width * size.depth
        return 2 * sequence_length * (size.matrices + head) + attention
    return 2 * sequence_length * (size.parameters - head)
