"""An H100 that computes nothing, for a machine without one: tensors without data are on it, and torch.compile generates
Triton code for sm_90.

It replaces functions inside torch 2.11 to 2.13, built with CUDA or without, so it belongs into a process of its own,
which must not have imported torch before. Needs g++ and triton. Not covered: kernels' speed, and memory that libraries
allocate themselves.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

STUBS = Path(__file__).with_name("cuda_stubs.cpp")
CAPABILITY = (9, 0)
SHARED_MEMORY = 232_448  # bytes of a block
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    multi_processor_count=132,
    total_memory=80 * 2**30,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=SHARED_MEMORY,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
    is_integrated=False,
    clock_rate=1_980_000,
    memory_clock_rate=2_619_000,
    memory_bus_width=5120,
)


class TritonDriver:
    """Triton's driver for a GPU that is not there."""

    class utils:
        @staticmethod
        def get_device_properties(_device: int) -> dict[str, int]:
            return {"max_shared_mem": SHARED_MEMORY, "multiprocessor_count": PROPERTIES.multi_processor_count}

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], PROPERTIES.warp_size)

    def get_current_device(self) -> int:
        return 0

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return CAPABILITY

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device("cuda", 0)


def find_missing_program() -> str | None:
    """Return what the fake H100 needs and this machine lacks; None if nothing."""
    if importlib.util.find_spec("triton") is None:
        return "triton"
    return None if shutil.which("g++") else "g++"


def install_fake_h100() -> None:
    """Make this process's torch believe in an H100. Cannot be undone."""
    if "torch" in sys.modules:
        raise RuntimeError("the fake H100 must be installed before torch is imported")
    folder = Path(str(importlib.util.find_spec("torch").origin)).parent
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    stubs = ctypes.CDLL(str(build_stubs(folder)), mode=ctypes.RTLD_GLOBAL)
    replace_device_queries()
    stubs.register_guard()
    replace_compiler_queries()
    choose_flash_attention()


def build_stubs(folder: Path) -> Path:
    """Compile `cuda_stubs.cpp` unless it is compiled already; return the library. `folder`: of the package torch."""
    version = importlib.metadata.version("torch")
    key = hashlib.sha256(STUBS.read_bytes() + f"{version} {folder}".encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"dailytrain-cuda-stubs-{os.getuid()}-{key}.so"
    if not target.exists():
        includes = [f"-I{folder / 'include'}", f"-I{folder / 'include/torch/csrc/api/include'}"]
        partial = target.with_suffix(f".{os.getpid()}")
        command = ["g++", "-shared", "-fPIC", "-O0", "-std=c++20", *includes, str(STUBS), "-o", str(partial)]
        subprocess.run(command, check=True)
        partial.replace(target)
    return target


def replace_device_queries() -> None:
    """Replace what torch asks about the device."""
    import torch
    import torch._subclasses.fake_tensor as fake_tensor
    import torch.cuda.random
    from torch._dynamo.device_interface import CudaInterface

    replacements: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "Event": lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
        "synchronize": lambda *_: None,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_name": lambda *_: PROPERTIES.name,
        "is_bf16_supported": lambda *_, **__: True,
        "get_arch_list": lambda: ["sm_90"],
        "current_stream": lambda *_: SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1),
        "_lazy_init": lambda: None,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
    }
    for name, function in replacements.items():
        setattr(torch.cuda, name, function)
    fake_tensor.init_gpu_context = lambda *_: None
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
        module.set_rng_state = lambda *_, **__: None
    torch.cuda.random._lazy_init = lambda: None
    torch.version.cuda = "13.0"
    torch._C._cuda_getCurrentRawStream = lambda _: 0
    for name in ("current_device", "exchange_device", "maybe_exchange_device", "get_raw_stream"):
        setattr(CudaInterface, name, staticmethod(lambda *_: 0))
    CudaInterface.set_device = staticmethod(lambda *_: None)
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.get_compute_capability = staticmethod(lambda *_: 90)
    for interface in (CudaInterface, CudaInterface.Worker):
        interface.get_device_properties = staticmethod(lambda *_: PROPERTIES)
    CudaInterface.Worker.current_device = staticmethod(lambda: 0)


def replace_compiler_queries() -> None:
    """Configure Inductor for a device on which nothing can be measured."""
    import torch._functorch.config as autograd_config
    import torch._inductor.config as inductor_config
    import torch._inductor.fx_passes.fuse_attention as fuse_attention
    import torch._inductor.fx_passes.misc_patterns as misc_patterns
    import torch._inductor.fx_passes.pad_mm as pad_mm
    import torch._inductor.utils as inductor_utils
    import torch.utils._triton as triton_queries
    from torch._inductor.runtime import triton_helpers
    from triton.runtime import driver

    driver.set_active(TritonDriver())
    triton_helpers.set_driver_to_gpu = lambda: None  # to the real one
    triton_queries.has_triton = triton_queries.has_triton_package = lambda: True
    inductor_config.compile_threads = 1
    inductor_config.fx_graph_cache = autograd_config.enable_autograd_cache = False
    inductor_config.shape_padding = False  # it measures
    inductor_config.joint_graph_constant_folding = False  # it computes
    inductor_utils.get_gpu_dram_gbps = lambda: 3350
    inductor_utils.get_device_tflops = lambda *_: 989.0
    # These patterns are traced with tensors that have data.
    fuse_attention._sfdp_init = pad_mm._pad_mm_init = misc_patterns._misc_patterns_init = lambda *_, **__: None


def choose_flash_attention() -> None:
    """Make `scaled_dot_product_attention` call the flash kernel, as on a GPU in 16 bits."""
    import torch

    def attend(
        query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **options: Any
    ) -> Any:
        assert mask is None, "flash attention takes no mask"
        options.pop("enable_gqa", None)
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, **options)[0]

    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attend, "AutogradCUDA")
    PROPERTIES.library = library  # which otherwise unregisters the function
