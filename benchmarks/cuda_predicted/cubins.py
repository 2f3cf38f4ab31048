"""Compile recorded Triton kernels to machine code of an H100. Needs no GPU: the assembler is in Triton's wheel."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ELF = b"\x7fELF"


def compile_kernels(sources: Mapping[str, str], folder: Path) -> dict[str, int]:
    """Return the number of programs (one for each configuration that would be timed) of each kernel.

    Raises if one does not compile. `folder`: where the sources are written, since Triton reads them again.
    """
    return {name: compile_kernel(name, source, folder) for name, source in sources.items()}


def compile_kernel(name: str, source: str, folder: Path) -> int:
    import torch._inductor.config

    torch._inductor.config.use_static_cuda_launcher = False  # keeps the compiled programs readable
    torch._inductor.config.use_static_triton_launcher = False
    file = folder / f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Any = getattr(module, name)
    kernel.precompile(warm_cache_only=True)
    programs = [result.kernel.asm["cubin"] for result in kernel.compile_results]
    assert programs
    assert all(program[:4] == ELF for program in programs), name
    return len(programs)
