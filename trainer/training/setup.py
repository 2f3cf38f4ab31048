"""Build a run: check the configuration, then prepare everything for the first step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from rich.console import Console
from torch.utils.checkpoint import checkpoint

from trainer.accounting import flops
from trainer.accounting.budget import Usage
from trainer.accounting.cores import choose_thread_count, count_cores
from trainer.checkpoint.host_buffers import HostBuffers
from trainer.config.resolve import MACHINE_FIELDS, ResolvedConfig, choose_text_limit, resolve_config
from trainer.config.train_config import DEFAULT_CORPUS, DEFAULT_TOKENIZER, ConfigError, TrainConfig
from trainer.data.dataset import Dataset, get_cache_folder, prepare_dataset
from trainer.data.loader import iterate_in_order
from trainer.data.prefetch import build_loader
from trainer.distributed.devices import build_fabric, has_compiler, is_writable, select_device, set_cache_folder
from trainer.errors import DivergenceError, ModelError, attribute_to_model
from trainer.models.base import LanguageModel, Recipe
from trainer.ops.devices import allocate_pinned, get_gpu_memory_bytes
from trainer.optim import muon
from trainer.optim import optimizers as optim
from trainer.training.checkpointing import check_run_folder, log_run_summary, resume_run, write_run_json
from trainer.training.grad_spikes import GradientSpikeFilter
from trainer.training.identity import describe_identity, read_saved_state
from trainer.training.metrics import build_logger
from trainer.training.micro_batch import warm_up
from trainer.training.model_sources import build_model_source
from trainer.training.objective import Objective
from trainer.training.run import Run


def build_run(config: TrainConfig, console: Console) -> Run:
    """Return the run, ready to train or resumed from its checkpoint. Raise `UserError` for bad input."""
    device = select_device(config.device, config.devices)
    set_cache_folder()
    state = read_saved_state(config.out)
    torch.set_num_threads(choose_run_threads(config, state.get("threads")))
    saved = state["identity"]
    saved_fields = saved.get("train", {})
    resolved = resolve_config(config, device, choose_machine_fields(config, device, saved_fields))
    if device == "cuda":
        check_size(config, resolved, get_gpu_memory_bytes())
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
    raw_model = built.model.to(fabric.device)
    row = row.to(fabric.device)
    check_outputs(raw_model, resolved, vocabulary_size)
    with attribute_to_model("while its FLOPs were counted"):
        flops_per_token = built.count_flops(row, resolved)
        window_flops = built.count_window_flops(row)
        initial_flops = float(built.count_initial_flops())
    objective = prepare_objective(raw_model, built.recipe, resolved, console)
    model = fabric.setup_module(objective)
    with attribute_to_model("while its optimizers were built"):
        # After `setup_module`, which may replace the weights by shards.
        backend = choose_optimizer_backend(resolved)
        optimizers = optim.build_optimizers(raw_model, built.recipe, resolved.muon_precision, backend)
        optimizers = [fabric.setup_optimizers(optimizer) for optimizer in optimizers]
    run = Run(
        config=config,
        resolved=resolved,
        fabric=fabric,
        dataset=dataset,
        raw_model=raw_model,
        objective=objective,
        model=model,
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


def check_size(config: TrainConfig, resolved: ResolvedConfig, card_bytes: int) -> None:
    """Raise `ConfigError` with the numbers if GPUs of this memory cannot hold a model of ours that starts untrained."""
    if config.graph is not None or config.from_ is not None:
        return
    from trainer.accounting.training_size import explain_too_large

    sizes = {"arch": config.arch, "model": config.model, "devices": resolved.devices}
    names = ("strategy", "precision", "table_precision", "activation_checkpointing")
    sizes["train"] = {name: getattr(resolved, name) for name in names}
    if excess := explain_too_large(sizes, config.budget, card_bytes):
        raise ConfigError(excess)


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
