"""Labels derived from a node's hardware, by which jobs select nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from trainer.protocol import Gpu

GB = 10**9
GPU_SIZES = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288)
"""Memory in GB of GPUs on the market. A driver reports at least this many decimal GB (a 24 GB card 24.1 with ECC on,
25.8 without)."""
DISK_SIZES = (50, 100, 250, 500, 1000, 2000, 4000, 8000)  # GB of free disk, decimal
VENDOR_WORDS = {"nvidia", "geforce", "rtx", "gtx", "tesla", "quadro", "graphics", "gpu"}
"""Words of a GPU name that do not identify the model."""
FORM_FACTOR = re.compile(r"\d+gb|sxm\d*|pcie|nvl|hbm.*|generation|blackwell|workstation|server|laptop|mobile")
"""First word of a GPU name that describes a form factor instead of a model."""


def derive_labels(gpus: Sequence[Gpu], disk_bytes: int) -> tuple[str, ...]:
    """Return `3090`, `2x3090`, `2x24gb`, `500gb`: GPUs by model, GPUs with this memory or more, and free disk.

    A job that needs fewer or smaller GPUs matches too, because matching compares the numbers.
    """
    models = Counter(model for gpu in gpus if (model := parse_gpu_model(gpu.name)))
    sizes = {size for gpu in gpus if (size := find_largest_size(gpu.memory_bytes, GPU_SIZES))}
    disk = find_largest_size(disk_bytes, DISK_SIZES)
    found = {*models, *(f"{count}x{model}" for model, count in models.items())}
    found |= {f"{sum(gpu.memory_bytes >= size * GB for gpu in gpus)}x{size}gb" for size in sizes}
    found |= {f"{disk}gb"} if disk else set()
    return tuple(sorted(label[:40] for label in found)[:64])


def find_largest_size(size: int, sizes: Sequence[int]) -> int | None:
    """Return the largest of `sizes`, in decimal GB, that fits into `size` bytes; None if none does."""
    return max((candidate for candidate in sizes if size >= candidate * GB), default=None)


def parse_gpu_model(name: str) -> str:
    """Return the model in a GPU's name: `3090ti` of "NVIDIA GeForce RTX 3090 Ti", `h100` of "NVIDIA H100 80GB"."""
    words: list[str] = []
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        if FORM_FACTOR.fullmatch(word):
            break
        words += [] if word in VENDOR_WORDS else [word]
    return "".join(words)
