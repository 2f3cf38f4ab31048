"""Training steps of the project, of nanochat and of plain torch on the same card: speed, memory and kernels."""

from __future__ import annotations

import os
import shutil
import statistics
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from benchmarks.contenders.nanochat import import_classes
from benchmarks.gpu.stage import (
    STAGE,
    Turn,
    emit,
    get_dataset,
    get_device,
    get_folder,
    is_rehearsal,
    measure_ms,
    report_failure,
    skip,
)
from trainer.accounting.training_size import COMPILED_ACTIVATIONS
from trainer.cli.bench import time_steps
from trainer.config.parsing import parse_config
from trainer.errors import is_out_of_memory
from trainer.ops import attention as kernels
from trainer.optim.optimizers import compile_steps
from trainer.training import compilation, loop
from trainer.training.loop import run_step

SMALL = (
    *("--model.depth", "2", "--model.width", "64", "--train.sequence-length", "64"),
    *("--train.batch", "4", "--train.micro-batch", "2", "--train.precision", "fp32"),
    *("--device", "cpu", "--threads", "1", "--train.dev-tokens", "512", "--train.sample-tokens", "0"),
)
"""Flags of a rehearsal."""
NANOCHAT = Path("extra/nanochat")  # a checkout, which travels with the project
PARITY_STEPS = 30
COMPILED_IN_REHEARSALS = ("d12", "nanochat-d12", "torch-d12", "train")


def is_compiled() -> bool:
    return not is_rehearsal() or os.environ[STAGE] in COMPILED_IN_REHEARSALS


def build_flags(depth: int, rows: int, micro: int, *more: str) -> list[str]:
    """Return the flags of a run at the night's shapes, or of a rehearsal's, where precisions cannot be chosen."""
    data = ["--dataset", str(get_dataset())]
    if is_rehearsal():
        arch = more[more.index("--arch") :][:2] if "--arch" in more else ("--model.heads", "2")
        memory = ("--model.memory_rows", "64") if "--model.memory_rows" in more else ()
        return [*SMALL, *data, *arch, *memory, "--train.compile", str(is_compiled()).lower()]
    sizes = ["--model.depth", str(depth), "--train.batch", str(rows), "--train.micro-batch", str(micro)]
    return ["--preset", "daily-h100", *sizes, "--train.sample-tokens", "0", *data, *more]


def build_run(turn: Turn, flags: list[str], is_evaluated: bool = False) -> Any:
    """Build a run as training does. All graphs are compiled before the turn is taken, those of an evaluation only if
    `is_evaluated`."""
    warm_up = loop.warm_up

    def compile_then_warm_up(run: Any, console: Console, row: Tensor) -> None:
        if run.resolved.compile:
            compile_parts(run, turn, is_evaluated)
            if run.model.bounded:  # else its blocks are compiled one after another, as they run
                turn.arm()
            rows = torch.zeros(run.resolved.micro_batch, run.resolved.sequence_length, dtype=torch.int64)
            try:
                compilation.run_forward_backward(run, rows.to(run.fabric.device))
            except Exception as error:
                if not (turn.is_taken and is_out_of_memory(error)):  # then `warm_up` tries smaller micro-batches
                    raise
                traceback.print_exc()
        run.model.zero_grad(set_to_none=True)
        turn.take()
        warm_up(run, console, row)

    check = compilation.check_compiled_gradients

    def report_check(run: Any, row: Tensor) -> None:
        with report_failure("gradients"):  # a tolerance that no card has met must not cost the figure
            check(run, row)
        run.model.zero_grad(set_to_none=True)

    loop.warm_up, compilation.check_compiled_gradients = compile_then_warm_up, report_check
    if not is_evaluated:
        compilation.run_pass = lambda run, _, rows: compilation.run_forward_backward(run, rows)
    if is_rehearsal():  # on a CPU optimizers are not compiled by default
        loop.choose_optimizer_backend = lambda resolved: compilation.BACKEND if resolved.compile else None
    out = get_folder() / "runs" / os.environ[STAGE]
    shutil.rmtree(out, ignore_errors=True)
    run = loop.build_run(parse_config([*flags, "--out", str(out)]), Console(stderr=True))
    emit(attention=kernels.describe_kernels(run.fabric.device))
    return run


def compile_parts(run: Any, turn: Turn, is_evaluated: bool) -> None:
    """Compile all but the features of training: losses, the features of an evaluation, the optimizers' steps."""
    shape = (run.resolved.micro_batch, run.resolved.sequence_length)
    dtype = torch.float32 if run.resolved.precision == "fp32" else torch.bfloat16
    width, device = int(run.identity["model"]["width"]), run.fabric.device
    features = torch.zeros(*shape, width, device=device, dtype=dtype, requires_grad=True)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    with turn.only_compile(), run.fabric.autocast():
        run.objective.compute_loss(features, tokens)
    if is_evaluated:
        run.model.eval()
        for compute in (
            lambda: run.objective.features(tokens),
            lambda: run.objective.compute_loss(features.detach(), tokens, per_position=True),
        ):
            with turn.only_compile(), torch.no_grad(), run.fabric.autocast():
                compute()
        run.model.train()
    compile_steps(run.optimizers)


def measure_steps(
    depth: int, rows: int, micro: int, steps: int, *more: str, parity: bool = False
) -> Callable[[], None]:
    """Return a stage: speed, MFU, memory, parts and kernels. `parity`: also the loss after some steps,
    to compare two precisions."""

    def measure() -> None:
        turn, budget = Turn(), f"{steps + 2 * PARITY_STEPS}steps"
        run = build_run(turn, [*build_flags(depth, rows, micro, *more), "--budget", budget])
        try:
            measure_run(run, steps, parity)
        finally:
            run.loader.close()
            turn.emit_compilations()

    return measure


def measure_run(run: Any, steps: int, parity: bool) -> None:
    first = time_steps(run, 1)
    seconds = sorted(time_steps(run, 1) for _ in range(1 if is_rehearsal() else steps))
    median = statistics.median(seconds)
    speed = run.resolved.tokens_per_step / median
    mfu = {name: value and round(value, 4) for name, value in run.compute_mfu(speed).items()}
    emit(tokens_per_s=round(speed), **mfu, step_s=round(median, 4), first_step_s=round(first, 3))
    emit(spread=round(seconds[-1] / seconds[0], 3), rows=run.resolved.batch, micro_batch=run.resolved.micro_batch)
    with report_failure("memory"):
        emit_memory(run)
    with report_failure("loss"):
        losses = [run.unread.read()[0]]
        losses += [run_step(run, 0.5).read()[0] for _ in range(PARITY_STEPS if parity and not is_rehearsal() else 0)]
        norm = run.unread.read()[1]
        emit(steps=len(losses), loss=statistics.mean(losses[-10:]), last_loss=losses[-1], gradient_norm=norm)
    for part in (emit_parts, emit_kernels):
        with report_failure(part.__name__):
            part(run)


def emit_memory(run: Any) -> None:
    """The peak beside the activations that our formula gives and the bytes of weights, gradients and momenta."""
    if run.fabric.device.type == "cpu":
        return
    weights = sum(parameter.nbytes for parameter in run.model.parameters())
    width, tokens = int(run.identity["model"]["width"]), run.resolved.micro_batch * run.resolved.sequence_length
    block, outside = COMPILED_ACTIVATIONS.get(run.config.arch, (0, 0))
    computed = (run.resolved.depth * block + outside) * tokens * width
    gib = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    gib |= {"weights": weights, "activations by the formula": computed}
    emit(peak_gib={name: round(count / 2**30, 2) for name, count in gib.items()})


def next_micro_batch(run: Any) -> tuple[Tensor, Tensor]:
    x, y = (tensor[: run.resolved.micro_batch].to(run.fabric.device) for tensor in run.loader.next_batch())
    return x, y


def emit_parts(run: Any) -> None:
    """Milliseconds of a micro-batch, of its loss, of each optimizer and of the gradient's norm."""
    x, y = next_micro_batch(run)
    with run.fabric.autocast():
        features = run.objective.compute_features(x).detach().requires_grad_()

    def compute_loss() -> None:
        with run.fabric.autocast():
            run.objective.compute_loss(features, y)

    parts = {"loss": measure_ms(compute_loss, 5)}
    parts["micro-batch"] = measure_ms(lambda: run.fabric.backward(run.wrapped(x, y) / y.numel()), 5)
    for number, optimizer in enumerate(run.optimizers):
        parts[f"optimizer {number}"] = measure_ms(optimizer.step, 3)
    gradients = [parameter.grad for parameter in run.model.parameters() if parameter.grad is not None]
    parts["norm"] = measure_ms(lambda: torch.nn.utils.get_total_norm(gradients), 5)
    run.model.zero_grad(set_to_none=True)
    emit(parts_ms={name: round(ms, 2) for name, ms in parts.items()})


def emit_kernels(run: Any) -> None:
    """The longest kernels of a micro-batch, and the share of its time that has none."""
    from torch.profiler import ProfilerActivity, profile

    x, y = next_micro_batch(run)
    on_gpu = run.fabric.device.type == "cuda"

    def work() -> None:
        run.fabric.backward(run.wrapped(x, y) / y.numel())

    wall = measure_ms(work, 3)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, name))
    total = sum(getattr(row, name) for row in rows) / 1e3
    run.model.zero_grad(set_to_none=True)
    emit(micro_batch_ms=round(wall, 2), kernels_ms=round(total, 2), launches=sum(row.count for row in rows))
    emit(kernels=[[row.key[:90], round(getattr(row, name) / 1e3, 2), row.count] for row in rows[:15]])


def measure_nanochat(depth: int, rows: int, micro: int, steps: int) -> Callable[[], None]:
    """Return a stage: nanochat's model and optimizer, its windows through FA3 if it is installed, else torch's FA2."""

    def measure() -> None:
        if not NANOCHAT.exists():
            skip(f"no checkout of nanochat in {NANOCHAT}")
        turn, device, is_small = Turn(), get_device(), is_rehearsal()
        gpt = import_classes(NANOCHAT)
        torch._dynamo.config.recompile_limit = 64  # its optimizer is compiled for each shape
        if not is_compiled():
            torch.compiler.set_stance("force_eager")
        attention = connect_attention()
        layers, length, batch, micro_rows = (2, 64, 4, 2) if is_small else (depth, 2048, rows, micro)
        width, (vocabulary, windows) = -(-layers * 64 // 128) * 128, (512, "L") if is_small else (32768, "SSSL")
        with torch.device("meta"):
            model = gpt.GPT(gpt.GPTConfig(length, vocabulary, layers, width // 128, width // 128, width, windows))
        model.to_empty(device=device)
        model.init_weights()
        optimizer = model.setup_optimizer(unembedding_lr=0.008, embedding_lr=0.3, weight_decay=0.28)
        compiled = torch.compile(model, dynamic=False)
        if is_compiled():
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # compiles
            model.zero_grad(set_to_none=True)
            optimizer.state.clear()  # would take memory of stages before this one
        turn.arm() if is_compiled() else turn.take()
        tokens = torch.randint(0, vocabulary, (micro_rows, length + 1), device=device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        def step() -> None:
            for _ in range(batch // micro_rows):
                (compiled(x, y) / (batch // micro_rows)).backward()
            optimizer.step()
            model.zero_grad(set_to_none=True)

        ms = measure_ms(step, steps, warm_up=1)
        turn.emit_compilations()
        speed = batch * length / ms * 1e3
        emit(peer="nanochat", attention=attention, tokens_per_s=round(speed), step_s=round(ms / 1e3, 4), rows=batch)
        mfu = round(speed * model.estimate_flops() / 989e12, 4)
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        emit(peer="nanochat", mfu_windowed=mfu, peak_gib=round(memory, 2))

    return measure


def connect_attention() -> str:
    """Let nanochat, which asks a hub for FA3, use our attention; return its name."""
    if is_rehearsal():
        return "its own"
    import nanochat.flash_attention as flash

    kernels.activate_flash_attention(get_device(), [128])

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = True, window_size: tuple[int, int] = (-1, 0)) -> Tensor:
        window = None if window_size[0] < 0 or window_size[0] >= k.size(1) else window_size[0] + 1
        return kernels.attention(*(each.transpose(1, 2) for each in (q, k, v)), window=window).transpose(1, 2)

    flash.flash_attn.flash_attn_func = attend
    return kernels.describe_kernels(get_device())


class PlainGPT(nn.Module):
    """GPT-2's architecture from torch's own modules."""

    def __init__(self, depth: int, width: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        features = self.blocks(self.tokens(x) + self.positions.weight, mask, is_causal=True)
        return F.cross_entropy(self.head(features).flatten(0, 1).float(), y.flatten())


def measure_plain_torch(depth: int, rows: int, steps: int) -> Callable[[], None]:
    """Return a stage: torch's modules with its fused AdamW, compiled, `rows` of a step in one pass."""

    def measure() -> None:
        turn, device, is_small = Turn(), get_device(), is_rehearsal()
        layers, length, vocabulary, batch = (2, 64, 512, 4) if is_small else (depth, 2048, 32768, rows)
        model = PlainGPT(layers, 64 * layers, length, vocabulary).to(device)
        compiled = torch.compile(model, dynamic=False) if is_compiled() else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
        tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        turn.arm() if is_compiled() else turn.take()

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = compiled(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        ms = measure_ms(step, steps, warm_up=1)
        turn.emit_compilations()
        emit(peer="plain torch", tokens_per_s=round(batch * length / ms * 1e3), step_s=round(ms / 1e3, 4), rows=batch)

    return measure
