"""A run from top to bottom: what is built, the loop, its evaluations.

`build_run` puts together configuration, data, model and optimizers, and resumes from the newest checkpoint. `fit` runs
steps until the budget is used, `train_step` launches one. `evaluate` measures the loss on dev. Checkpoints are written
in `checkpointing`.

With a budget in steps, tokens or FLOPs, a run that was killed and resumed computes what an uninterrupted one does, to
the last digit, on the same kind of machine with the same number of threads.

Not covered: several machines, and stopping a step that hangs (the node's time limit does).
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from trainer.accounting import flops
from trainer.accounting.budget import Budget, Usage
from trainer.accounting.cores import choose_thread_count, count_cores
from trainer.checkpoint.store import HostBuffers, get_checkpoint_path
from trainer.config.train_config import (
    DEFAULT_CORPUS,
    DEFAULT_TOKENIZER,
    MACHINE_FIELDS,
    ConfigError,
    ResolvedConfig,
    TrainConfig,
    choose_text_limit,
    resolve_config,
)
from trainer.data.dataset import Dataset, get_cache_folder, prepare_dataset
from trainer.data.loader import IGNORE_INDEX, build_loader, iterate_in_order
from trainer.distributed.devices import (
    average_across_processes,
    average_tensor,
    build_fabric,
    compute_gradient_norm,
    gather_weights,
    get_free_memory_bytes,
    get_local_tensor,
    get_peak_memory_bytes,
    has_compiler,
    is_writable,
    select_device,
    set_cache_folder,
)
from trainer.errors import (
    RESUME_HINT,
    DivergenceError,
    ExitCode,
    MachineError,
    ModelError,
    TrainingInterrupted,
    attribute_to_model,
)
from trainer.inference.sampling import PROMPTS, complete_prompt
from trainer.models.base import LanguageModel, Recipe
from trainer.ops import attention
from trainer.ops.devices import allocate_pinned, get_gpu_memory_bytes, get_row_gradients
from trainer.ops.losses import limit_chunk_positions
from trainer.optim import muon
from trainer.optim import optimizers as optim
from trainer.training.checkpointing import (
    check_run_folder,
    describe_identity,
    log_run_summary,
    read_saved_state,
    resume_run,
    save_checkpoint,
    save_milestone,
    write_result,
    write_run_json,
)
from trainer.training.metrics import MetricsWriter, TrainingProgress, build_logger
from trainer.training.model_sources import build_model_source, seed_step
from trainer.training.objective import Objective
from trainer.training.run import GradientSpikeFilter, MetricsWindow, Run, StepValues, StopRequest

if TYPE_CHECKING:
    from lightning_fabric import Fabric


# --- building a run ---------------------------------------------------------------------------------------------------


def build_run(config: TrainConfig, console: Console) -> Run:
    """Return the run, ready to train or resumed from its checkpoint. Raise `UserError` for bad input."""
    device = select_device(config.device, config.devices)
    set_cache_folder()
    state = read_saved_state(config.out)
    torch.set_num_threads(choose_run_threads(config, state.get("threads")))
    saved = state["identity"]
    saved_fields = saved.get("train", {})
    resolved = resolve_config(config, device, choose_machine_fields(config, device, saved_fields))
    check_size(config, resolved, get_gpu_memory_bytes() if device == "cuda" else get_free_memory_bytes())
    source = build_model_source(config, resolved, saved)
    logger = build_logger(config.logger, config.out, "train")
    dataset = open_training_dataset(config, device)
    row, _ = next(iterate_in_order(dataset, "dev", 1, resolved.sequence_length))  # raises if there is too little text
    row = row[:, : resolved.chunk_tokens]
    base, vocabulary_size = None, dataset.tokenizer.vocabulary_size
    if config.from_ is not None:
        from trainer.checkpoint.base_weights import choose_vocabulary_size, find_base_checkpoint

        base = find_base_checkpoint(config.from_)
        vocabulary_size = choose_vocabulary_size(base, dataset, config.dataset is not None)
    fabric = build_fabric(resolved.device, resolved.devices, resolved.strategy, resolved.precision, logger)
    dataset.verify(("train", "dev"), fabric.global_rank, fabric.world_size)  # each process reads its share
    built = source.build(dataset.tokenizer, vocabulary_size, base)
    source.print_choice(built, console)
    if resolved.chunk and built.model.bounded:
        raise ConfigError(f"train.chunk needs a model with a state of fixed size, such as rwkv5, not {config.arch}")
    if resolved.devices > 1 and built.model.list_memories():
        raise ConfigError("an n-gram memory trains on one device: its gradients are not exchanged")
    model = built.model.to(fabric.device)
    row = row.to(fabric.device)
    attention.head_sizes.clear()
    check_outputs(model, resolved, vocabulary_size)
    if device == "cuda":
        attention.activate_flash_attention(fabric.device, attention.head_sizes)
    with attribute_to_model("while its FLOPs were counted"):
        flops_per_token = built.count_flops(row, resolved)
        window_flops = built.count_window_flops(row)
        initial_flops = float(built.count_initial_flops())
    objective = prepare_objective(model, built.recipe, resolved, console)
    wrapped = fabric.setup_module(objective)
    with attribute_to_model("while its optimizers were built"):
        # After `setup_module`, which may replace the weights by shards.
        backend = choose_optimizer_backend(resolved)
        optimizers = optim.build_optimizers(model, built.recipe, resolved.muon_precision, backend)
        optimizers = [fabric.setup_optimizers(optimizer) for optimizer in optimizers]
    run = Run(
        config=config,
        resolved=resolved,
        fabric=fabric,
        dataset=dataset,
        model=model,
        objective=objective,
        wrapped=wrapped,
        optimizers=optimizers,
        recipe=built.recipe,
        flops_per_token=flops_per_token,
        window_flops_per_token=window_flops,
        spike_filter=GradientSpikeFilter(resolved.spikes),
        loader=build_loader(
            dataset,
            "train",
            resolved.packing,
            resolved.rows_per_device,
            resolved.sequence_length,
            config.seed,
            rank=fabric.global_rank,
            ranks=fabric.world_size,
            pinned=resolved.device == "cuda",
        ),
        identity=describe_identity(
            config, resolved, built.fields, built.recipe, dataset, built.lineage, built.graph_hash
        ),
        traced=built.traced,
        lineage=built.lineage,
        host_buffers=HostBuffers(allocate_pinned) if device == "cuda" and fabric.is_global_zero else None,
        peak_flops=flops.find_peak_flops(fabric.device, resolved.precision, torch.get_num_threads()),
        usage=Usage(flops=initial_flops),
        initial_flops=initial_flops,
    )
    check_run_folder(run)
    resume_run(run, console)
    warm_up(run, console, row)
    write_run_json(run)
    log_run_summary(run, saved_fields, console)
    return run


def choose_run_threads(config: TrainConfig, saved: Any) -> int:
    """Return the run's CPU threads: those `saved` with it, since the last digits of its results depend on them, else
    what suits this machine now."""
    if isinstance(saved, int) and saved > 0:
        return min(saved, count_cores())
    limit = config.threads or max(1, count_cores() // config.devices)
    return limit if config.devices > 1 else choose_thread_count(limit)  # several processes would count each other


def check_size(config: TrainConfig, resolved: ResolvedConfig, memory_bytes: int) -> None:
    """Raise `MachineError` with the numbers if a model of ours that starts untrained needs more than this memory.

    `memory_bytes`: of each GPU, or that which all processes on the CPU share.
    """
    if config.graph is not None or config.from_ is not None:
        return
    from trainer.accounting.training_size import explain_too_large

    on_cpu = resolved.device == "cpu"
    model = {"depth": resolved.depth, **config.model} if on_cpu else config.model
    sizes = {"arch": config.arch, "model": model, "devices": resolved.devices}
    names = ("strategy", "precision", "table_precision", "activation_checkpointing")
    sizes["train"] = {name: getattr(resolved, name) for name in names}
    if excess := explain_too_large(sizes, config.budget, memory_bytes, on_cpu=on_cpu):
        raise MachineError(excess)


def choose_machine_fields(
    config: TrainConfig, device: Literal["cpu", "cuda"], saved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return values for `MACHINE_FIELDS`: those saved with the run, else what suits this machine."""
    if config.train.precision == "fp8":
        from trainer.training import precision

        precision.check_fp8(device)
    fields = {name: saved[name] for name in MACHINE_FIELDS if name in saved}
    fields.setdefault("muon_precision", muon.choose_precision(device))
    if config.train.precision == "auto" and "precision" not in fields:
        from trainer.training import precision

        fields["precision"] = precision.choose_precision(torch.device(device), torch.get_num_threads())
    if not has_compiler(device):
        fields.setdefault("compile", False)
    return fields


def open_training_dataset(config: TrainConfig, device: str) -> Dataset:
    """Open the configured dataset, or prepare the corpus, or find it in the cache."""
    if config.dataset is not None:
        return Dataset.open(config.dataset)
    return prepare_dataset(
        config.corpus or DEFAULT_CORPUS,
        config.tokenizer or DEFAULT_TOKENIZER,
        # In a sandbox only the run's folder is writable.
        folder=None if is_writable(get_cache_folder()) else config.out / "dataset",
        limit_bytes=choose_text_limit(config, device),
        progress=True,
    )


def prepare_objective(
    model: LanguageModel, recipe: Recipe, resolved: ResolvedConfig, console: Console | None = None
) -> Objective:
    """Return the model's training objective, with other precisions, activation checkpointing and compilation if
    configured."""
    if resolved.precision == "fp8":
        from trainer.training import precision

        precision.convert_to_fp8(model)
    if resolved.table_precision == "bf16":
        from trainer.training import precision

        converted = precision.convert_tables(model, recipe)
        if console is not None:
            console.print(f"{converted} embeddings are kept in bf16", highlight=False)
    if resolved.activation_checkpointing:
        for block in model.repeated_blocks():
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    objective = Objective(model, recipe.l2wrap, resolved.chunk, resolved.chunk_gradients == "through")
    if resolved.compile:
        from trainer.training import compilation

        compilation.compile_objective(objective, resolved)
    return objective


def choose_optimizer_backend(resolved: ResolvedConfig) -> str | None:
    """Return torch.compile's backend for the steps of Muon and of tables; None on CPUs and for sharded weights, where
    they are not compiled."""
    if not resolved.compile or resolved.device == "cpu" or resolved.is_sharded:
        return None
    from trainer.training import compilation

    return compilation.BACKEND


def check_outputs(model: LanguageModel, resolved: ResolvedConfig, vocabulary_size: int) -> None:
    """Raise `ModelError` unless the untrained model returns finite logits of the right shape."""
    device = next(model.parameters()).device
    # Without gradients two rows need less memory than a step on one.
    with attribute_to_model("in its first forward pass", 1), torch.no_grad():
        logits = model(torch.zeros(2, resolved.chunk_tokens, dtype=torch.int64, device=device))
    expected = (2, resolved.chunk_tokens, vocabulary_size)
    if tuple(logits.shape) != expected:
        raise ModelError(f"The model returns logits of the shape {tuple(logits.shape)} instead of {expected}.")
    if not logits.isfinite().all():
        raise DivergenceError("The model's first logits, before any training, are not finite.")


TRAIN_LINES = 200  # train lines over a whole run, fewer if it has fewer steps


# --- the loop ---------------------------------------------------------------------------------------------------------


def fit_and_finish(run: Run, console: Console, stop: StopRequest) -> int:
    """Train until the budget is used or a stop is requested; save a checkpoint in either case."""
    logger = run.fabric.loggers[0] if run.fabric.loggers else None
    if logger is not None:
        logger.log_hyperparams(run.identity)
    with MetricsWriter(run.metrics_path, logger) as metrics, TrainingProgress(console) as progress:
        stop.is_graceful = True
        try:
            fit(run, metrics, progress, stop)
        except TrainingInterrupted:
            folder = save_checkpoint(run)
            progress.print_line(f"interrupted after saving {folder.name}. {RESUME_HINT}")
            return ExitCode.INTERRUPTED
        folder = get_checkpoint_path(run.config.out, run.usage.steps)
        run.writer.wait()
        if run.last_checkpoint != folder:
            save_checkpoint(run, is_final=True)
        write_result(run, folder)
        progress.print_line(
            f"done: {run.usage.steps:,} steps, {run.usage.tokens:,} tokens, {run.usage.seconds:.1f} s of training, "
            f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
        )
    return ExitCode.OK


def fit(run: Run, metrics: MetricsWriter, progress: TrainingProgress, stop: StopRequest) -> None:
    """Train until the budget is used. Raise `TrainingInterrupted` between two steps, `ModelError` if it diverges."""
    if run.usage.steps == 0:
        evaluate(run, metrics, progress)
    interval, saved_at = run.config.checkpoint_interval, time.monotonic()
    with pause_garbage_collection():
        while (before := run.fraction) < 1:
            run.writer.check()
            started, charged = time.perf_counter(), run.usage.seconds
            run_step(run, before)
            seconds = time.perf_counter() - started
            is_due = is_checkpoint_due(interval, run.usage.steps + 1, saved_at)
            # Averaged, so that all devices take the same decisions.
            values = (seconds, stop.is_requested, is_due)
            seconds, must_stop, is_due = average_across_processes(run.fabric, values)
            charge_step(run, seconds)
            if not (must_stop or is_due or is_pause_due(run, before)):
                continue
            norm, waited = read_last_step(run)
            charge_seconds(run, charged, seconds + waited)
            if milestone := find_passed_milestone(before, run.fraction, run.config.milestones):
                save_milestone(run, milestone)
            if crosses_interval(before, run.fraction, TRAIN_LINES):
                write_train_line(run, norm, metrics, progress)
            if crosses_interval(before, run.fraction, run.resolved.evaluations):
                evaluate(run, metrics, progress)
                gc.collect()
            if run.fraction >= 1:
                break  # its last checkpoint has another content
            if must_stop:
                raise TrainingInterrupted
            if is_due:
                save_checkpoint(run, wait=False)
                saved_at = time.monotonic()


def is_pause_due(run: Run, before: float) -> bool:
    """Return whether something follows a step that needs its values or weights. `before`: the used fraction before."""
    after = run.fraction
    if after >= 1 or find_passed_milestone(before, after, run.config.milestones):
        return True
    return any(crosses_interval(before, after, parts) for parts in (TRAIN_LINES, run.resolved.evaluations))


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which would stop training for up to half a second and find nothing.

    Without effect if the caller has frozen objects itself.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def run_step(run: Run, fraction: float) -> StepValues:
    """Launch the next step, and read the values of the one before, which the GPU has computed by then.

    `fraction`: the used part of the budget.
    """
    optim.apply_schedule(run.optimizers, run.recipe, fraction, run.usage.steps)
    before = run.unread
    seed_step(run.config.seed, run.usage.steps, run.fabric.global_rank)
    run.unread = train_step(
        run.fabric,
        run.wrapped,
        run.optimizers,
        run.loader.next_batch(),
        run.resolved.micro_batch,
        run.spike_filter,
        clip=run.recipe.clip,
        step=run.usage.steps + 1,
        fraction=fraction,
        before=before,
    )
    if before is not None:
        run.window.losses += before.read()[0]
    return run.unread


def read_last_step(run: Run) -> tuple[float, float]:
    """Return the last step's gradient norm and the seconds that it took to wait for it.

    Raise `DivergenceError` if training diverged.
    """
    assert run.unread is not None, "each step is read once"
    started = time.perf_counter()
    loss, norm = run.unread.read()
    run.unread = None
    run.window.losses += loss
    return norm, average_across_processes(run.fabric, [time.perf_counter() - started])[0]


def train_step(
    fabric: Fabric,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    batch: tuple[Tensor, Tensor],
    micro_batch: int,
    spike_filter: GradientSpikeFilter,
    clip: float | None = None,
    step: int = 1,
    fraction: float = 0.0,
    before: StepValues | None = None,
) -> StepValues:
    """Launch one optimizer step on this device's rows `[B, T]` of inputs and targets.

    Return the loss in nats per token, over all devices, and the norm of the gradient, to be read. `before`: those of
    the step before, which are read between this step's passes and its update. `step` and `fraction` are for messages.
    """
    total = accumulate_gradients(fabric, model, batch, micro_batch)
    parameters = list(model.parameters())
    norm = compute_gradient_norm(parameters)
    if norm is None:
        raise ModelError("No parameter of the model gets a gradient.")
    if before is not None:
        before.read()
    values = StepValues(average_tensor(fabric, total), norm, spike_filter, clip, step, fraction)
    with attribute_to_model("in an optimizer step", micro_batch):
        update_weights(parameters, optimizers, norm, values.is_accepted, clip)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return values


def accumulate_gradients(fabric: Fabric, model: nn.Module, batch: tuple[Tensor, Tensor], micro_batch: int) -> Tensor:
    """Run forward and backward over a step's micro-batches; return this device's part of the loss.

    The sum of losses is divided by the mean number of targets per device, without ignored ones. Averaging over
    devices, as is done with gradients, then gives the mean over all targets of the step.
    """
    inputs, targets = batch
    objective = getattr(model, "module", model)
    target_count = max(1.0, average_across_processes(fabric, [float((targets != IGNORE_INDEX).sum())])[0])
    total = torch.zeros((), device=fabric.device)
    for start in range(0, len(inputs), micro_batch):
        rows = slice(start, start + micro_batch)
        x, y = (tensor[rows].to(fabric.device, non_blocking=True) for tensor in batch)
        # Exchange gradients only in the last micro-batch.
        with fabric.no_backward_sync(model, enabled=rows.stop < len(inputs)):
            if hasattr(objective, "unshard") and 0 < objective.chunk < x.size(1):  # FSDP's
                from trainer.training.chunked_bptt import ShardedRows

                with attribute_to_model("in a pass over a row's chunks", micro_batch):
                    loss = ShardedRows(model, objective, x, y, 1 / target_count).run_passes()
            else:
                with attribute_to_model("in a forward pass", micro_batch):
                    loss = model(x, y) / target_count
                with attribute_to_model("in a backward pass", micro_batch):
                    fabric.backward(loss)
        total += loss.detach()
    return total


def update_weights(
    parameters: Sequence[nn.Parameter],
    optimizers: Sequence[Optimizer],
    norm: Tensor,
    is_accepted: Tensor,
    clip: float | None,
) -> None:
    """Clip the gradients, whose norm is `norm`, and step the optimizers if `is_accepted`, without waiting for a GPU
    whose optimizers can read that there."""
    can_skip = optim.set_skipped(optimizers, ~is_accepted)
    if not can_skip and not is_accepted:
        return
    if clip is not None:
        factor = (clip / norm.double()).clamp(max=1.0)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor.to(norm.dtype) if can_skip else float(factor))
        for rows in filter(None, map(get_row_gradients, parameters)):
            rows.factor = factor.to(norm.dtype)
    for optimizer in optimizers:
        optimizer.step()


def charge_step(run: Run, seconds: float) -> None:
    """Charge a step to the budget and to the next train line."""
    run.usage.steps += 1
    run.usage.tokens += run.resolved.tokens_per_step
    run.usage.flops = run.initial_flops + run.usage.tokens * run.flops_per_token
    run.window.steps += 1
    if run.budget.kind == "seconds":
        run.step_microseconds.append(0)
    charge_seconds(run, run.usage.seconds, seconds)


def charge_seconds(run: Run, before: float, seconds: float) -> None:
    """Set the last step's time, rounded to what a checkpoint stores. `before`: the used seconds without it."""
    seconds = round(seconds, 6)
    if run.budget.kind == "seconds":
        run.step_microseconds[-1] = round(seconds * 1e6)
    run.window.seconds += before + seconds - run.usage.seconds
    run.usage.seconds = before + seconds


def crosses_interval(before: float, after: float, parts: int) -> bool:
    """Return whether the used fraction passes a multiple of 1 / parts.

    It depends on the budget alone, so a resumed run does the same things at the same steps.
    """
    return math.floor(after * parts + 1e-9) > math.floor(before * parts + 1e-9)


def find_passed_milestone(before: float, after: float, every: int) -> int | None:
    """Return the last multiple of `every` percent, below 100, that the used fraction passes; None if there is none."""
    if not every:
        return None
    start, end = (math.floor(fraction * 100 / every + 1e-9) * every for fraction in (before, after))
    end = min(end, 99 // every * every)
    return end if end > start else None


def is_checkpoint_due(interval: Budget, step: int, saved_at: float) -> bool:
    """Return whether it is time for a checkpoint. An interval in seconds is wall-clock time since `saved_at`."""
    if interval.kind == "steps":
        return step % int(interval.amount) == 0
    return time.monotonic() - saved_at >= interval.amount


def write_train_line(run: Run, norm: float, metrics: MetricsWriter, progress: TrainingProgress) -> None:
    window, run.window = run.window, MetricsWindow()
    speed = window.steps * run.resolved.tokens_per_step / window.seconds
    loss = window.losses / window.steps
    metrics.write(
        "train",
        run.usage.steps,
        **run.get_progress_metrics(),
        loss=loss,
        learning_rate=run.optimizers[0].param_groups[0]["lr"],
        gradient_norm=norm,
        tokens_per_second=speed,
        **run.compute_mfu(speed),
        memory_bytes=get_peak_memory_bytes(run.fabric.device),
        spikes=run.spike_filter.skipped,
    )
    progress.update(run.usage.steps, run.fraction, loss, speed)


# --- evaluation -------------------------------------------------------------------------------------------------------


def evaluate(run: Run, metrics: MetricsWriter, progress: TrainingProgress) -> None:
    """Compute the loss on dev and generate samples. Not charged to the budget."""
    run.model.eval()
    run.dev = compute_dev_loss(run)
    run.model.train()
    if not math.isfinite(run.dev["loss"]):
        raise DivergenceError(f"The loss on dev became {run.dev['loss']} at step {run.usage.steps}: training diverged.")
    metrics.write("dev", run.usage.steps, **run.get_progress_metrics(), **run.dev)
    text = f"dev loss {run.dev['loss']:.4f} nats a token, {run.dev['bits_per_byte']:.4f} bits a byte"
    progress.print_line(f"{run.fraction:4.0%}  step {run.usage.steps}, {text}")
    for prompt in PROMPTS if run.resolved.sample_tokens else ():
        metrics.write("sample", run.usage.steps, prompt=prompt, text=generate_sample(run, prompt))


@torch.no_grad()
def compute_dev_loss(run: Run) -> dict[str, float]:
    """Return nats per token and bits per byte of text.

    Targets without text (end of text) do not count, so that results are comparable across tokenizers and with a scorer
    of single documents. Neither do ignored targets.
    """
    resolved, device = run.resolved, run.fabric.device
    byte_lengths = torch.from_numpy(run.dataset.tokenizer.byte_lengths()).to(device)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    text_bytes = torch.zeros((), dtype=torch.int64, device=device)
    tokens = torch.zeros((), dtype=torch.int64, device=device)
    limit = max(1, resolved.dev_tokens // resolved.sequence_length)
    for inputs, targets in iterate_in_order(run.dataset, "dev", resolved.micro_batch, resolved.sequence_length, limit):
        missing = resolved.micro_batch - len(inputs)
        if resolved.compile and missing:  # the model would be compiled again for a smaller last batch
            inputs = F.pad(inputs, (0, 0, 0, missing))
            targets = F.pad(targets, (0, 0, 0, missing), value=IGNORE_INDEX)
        y = targets.to(device).flatten()
        with attribute_to_model("while it was evaluated", resolved.micro_batch):
            losses = run.wrapped(inputs.to(device), targets.to(device), per_position=True)
        sizes = byte_lengths[y.clamp(min=0)] * (y != IGNORE_INDEX)
        has_text = sizes > 0
        nats += losses[has_text].double().sum()
        tokens += has_text.sum()
        text_bytes += sizes.sum()
    return {"loss": float(nats / tokens), "bits_per_byte": float(nats / math.log(2) / text_bytes)}


def generate_sample(run: Run, prompt: str) -> str:
    with attribute_to_model("while it generated a sample"), run.fabric.autocast(), gather_weights(run.objective):
        return complete_prompt(
            run.model,
            run.dataset.tokenizer,
            prompt,
            tokens=run.resolved.sample_tokens,
            seed=run.config.seed,
            context=run.resolved.sequence_length,
        )


# --- the micro-batch --------------------------------------------------------------------------------------------------
# Choose the micro-batch (the rows of one forward pass) and compile the model, before the budget's clock starts. The
# micro-batch is no part of the model: it is the largest divisor of a device's rows, up to the configured one, that fits
# into this machine's memory, whatever an earlier machine of the run chose. On a GPU that is found by trying smaller and
# smaller ones. On a CPU, where the kernel would kill the process, it is computed from the free memory and the bytes
# that one row saves for the backward pass.


MEMORY_SHARE = 0.6  # of the free memory; the rest is for what is not counted here and for other processes
LOGIT_COPIES = 4  # a chunk's logits in fp32, their softmax, their gradient, a soft cap


def measure_row_bytes(objective: Objective, row: Tensor) -> int:
    """Return the bytes that a forward pass over `[1, T]` tokens keeps, without weights and tokens."""
    features: list[Tensor] = []

    def compute() -> Tensor:
        features.append(objective.model.features(row))
        return features[0]

    return measure_saved_bytes(compute, (*objective.parameters(), row)) + 2 * features[0].nbytes


def measure_saved_bytes(compute: Callable[[], Tensor], excluded: Iterable[Tensor]) -> int:
    """Return the bytes that a computation saves for its backward pass, without those of the excluded tensors."""
    # With torch 2.11 a sharded tensor itself has no storage.
    excluded_storages = {get_local_tensor(tensor).untyped_storage().data_ptr() for tensor in excluded}
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = get_local_tensor(tensor).untyped_storage()
        if storage.data_ptr() not in excluded_storages:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = compute()
    del result  # not earlier: a freed storage's address could be used again
    return sum(saved.values())


def choose_cpu_micro_batch(objective: Objective, row: Tensor) -> int:
    """Return how many rows fit into the memory at once, at least 1."""
    free = get_free_memory_bytes()
    # Gradients and two momenta are allocated later, each as large as the weights.
    weights = sum(parameter.nbytes for parameter in optim.list_densely_trained(objective))
    with torch.no_grad():
        vocabulary_size = objective.model(row[:, :1]).size(-1)
    logits = LOGIT_COPIES * 4 * limit_chunk_positions("cpu", vocabulary_size, 0) * vocabulary_size
    available = MEMORY_SHARE * free - 3 * weights - logits
    return max(1, int(available / max(1, measure_row_bytes(objective, row))))


def warm_up(run: Run, console: Console, row: Tensor) -> None:
    """Choose the run's micro-batch and compile the model. Changes nothing else. `row`: tokens `[1, T]`."""
    if run.fraction >= 1:
        return
    if run.resolved.device == "cpu" and run.resolved.micro_batch > 1:
        run.set_micro_batch(min(run.resolved.micro_batch, measure_cpu_micro_batch(run, row)))
    if run.resolved.compile or run.resolved.device == "cuda":
        from trainer.training.compilation import compile_run

        compile_run(run, console, row)


def measure_cpu_micro_batch(run: Run, row: Tensor) -> int:
    """Return how many rows fit into the memory of a CPU, the same in all processes."""
    with attribute_to_model("in a forward pass", 1), torch.compiler.set_stance("force_eager"):
        if run.resolved.is_sharded:
            with torch.no_grad():
                run.wrapped(row, row)  # FSDP initializes itself in the first call of the whole model
        with gather_weights(run.objective):
            rows = choose_cpu_micro_batch(run.objective, row)
    return int(run.fabric.broadcast(rows))
