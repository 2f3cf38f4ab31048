"""Peak FLOP/s of accelerators, for MFU and sponsors' credit.

Standard library only: the site uses it too.
"""

from __future__ import annotations

import re
from functools import lru_cache

PEAK_FLOPS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A30": 165e12,
    "A40": 150e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX PRO 6000": 504e12,
    "RTX 6000 Ada": 364e12,
    "RTX 5000 Ada": 261e12,
    "RTX 4000 Ada": 107e12,
    "RTX 4000 SFF Ada": 77e12,
    "RTX A6000": 155e12,
    "RTX A5000": 111e12,
    "RTX A4000": 77e12,
    "RTX 5090": 209e12,
    "RTX 5080": 113e12,
    "RTX 5070 Ti": 88e12,
    "RTX 5070": 62e12,
    "RTX 4090": 165e12,
    "RTX 4080 SUPER": 104e12,
    "RTX 4080": 97e12,
    "RTX 4070 Ti SUPER": 88e12,
    "RTX 4070 Ti": 80e12,
    "RTX 4070 SUPER": 71e12,
    "RTX 4070": 58e12,
    "RTX 4060 Ti": 44e12,
    "RTX 4060": 30e12,
    "RTX 3090 Ti": 80e12,
    "RTX 3090": 71e12,
    "RTX 3080 Ti": 68e12,
    "RTX 3080": 60e12,
    "RTX 3070 Ti": 43e12,
    "RTX 3070": 41e12,
    "RTX 3060 Ti": 32e12,
    "RTX 3060": 26e12,
    "V100": 125e12,
    "T4": 65e12,
    "TITAN RTX": 130e12,
    "RTX 2080 Ti": 54e12,
}
"""Dense bf16 FLOP/s, accumulated in fp32, at boost clock, from NVIDIA's data sheets and white papers (their
figures "with sparsity" halved); fp16 for the four of Volta and Turing, which have no bf16. The first name found in
the device's name, as whole words, is used."""

H100_PEAK_FLOPS = PEAK_FLOPS["H100"]
H100_BYTES_PER_SECOND = 3.35e12  # of an H100 SXM's memory (NVIDIA's data sheet)


FORM = re.compile(r"\b(rtx|pcie|nvl)\b| ")
"""Words of GPU names that a node's label omits (`trainer.node.hardware`)."""


def list_form_factors(model: str) -> list[str]:
    """Return the names of the GPUs with this label."""
    return [name for name in PEAK_FLOPS if FORM.sub("", name.lower()) == model]


def find_gpu_name(name: str) -> str | None:
    """Return a GPU's name in `PEAK_FLOPS` by its driver's; None if unknown, as for laptops."""
    known = (part for part in PEAK_FLOPS if re.search(rf"\b{re.escape(part)}\b", name))
    return None if "Laptop" in name else next(known, None)


@lru_cache(maxsize=256)
def lookup_peak_flops(name: str) -> float | None:
    """Return the FLOP/s of a device by its driver's name, or of a node's class ("2 x NVIDIA H100").

    None if unknown, as for laptops.
    """
    count, times, _ = name.partition(" x ")
    factor = int(count) if times and count.isdigit() else 1
    known = find_gpu_name(name)
    return factor * PEAK_FLOPS[known] if known else None
