"""One pipeline stage of a model: its blocks, its gradient sum and its optimizer state.

A stage depends only on the run's configuration and its index: the whole model is built from the seed, exactly as
`dailytrain train` builds it, and the other stages' parts are removed. So the chained stages equal that model to the
last bit, and parameters keep the whole model's names.

Not covered: a model that does not fit into main memory once, at the start. Initial weights may differ in their last
bits between CPUs (RWKV-5's are orthogonal), so all but the first peer of a stage load its state from another.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.data.loader import IGNORE_INDEX
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.optim.optimizers import assign_parameters
from trainer.swarm.adamw import CHUNK, AdamW
from trainer.swarm.config import SwarmConfig
from trainer.swarm.partitions import Partition, PartitionError, balance_blocks, get_partition
from trainer.training.objective import Objective

BUILD_LOCK = threading.Lock()  # torch's random state belongs to the process, so only one model is built at a time

HashObject = Any  # A sha256 object; its type has no public name in hashlib


class StateError(ValueError):
    """The state does not belong to this stage."""


@dataclass
class ForwardRecord:
    """A micro-batch at a stage between its forward and its backward pass, which may run once."""

    tokens: Tensor
    inputs: Tensor | None  # `[B, T, width x streams]`, fp32, requires gradients; None at the first stage
    targets: Tensor | None  # At the last stage only
    output: Tensor  # Input of the next stage; at the last stage the sum of nats. Detached.
    graph: Tensor | None  # The output with its autograd graph; None without learning, and after the backward pass

    @property
    def nats(self) -> float:
        return float(self.output)

    @property
    def count(self) -> int:
        """Number of targets that carry a loss."""
        assert self.targets is not None
        return int((self.targets != IGNORE_INDEX).sum())


class Stage:
    """Not thread-safe: only the worker's compute thread uses it."""

    def __init__(self, config: SwarmConfig, index: int, device: str | torch.device = "cpu") -> None:
        if not 0 <= index < config.stages:
            raise PartitionError(f"there is no stage {index} of {config.stages}")
        self.config, self.index, self.device = config, index, torch.device(device)
        self.partition, model = get_partition(config.arch), build_model(config)
        self.block_range = partition_blocks(config, model)[index]
        decayed = get_decayed_names(config, model)
        remove_other_stages(self.partition, model, self.block_range)
        self.model = model.to(self.device)
        self.objective = Objective(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = build_optimizer(config, self.parameters, decayed)
        self.version = 0  # Number of updates, which is the current step
        self.gradient_sum = torch.zeros(sum(p.numel() for p in self.parameters.values()), device=self.device)
        """`[P]`, fp32: the sum of accumulated gradients, in the order of the parameters."""

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.config.stages - 1

    @property
    def input_width(self) -> int:
        """Last dimension of the input; 0 at the first stage."""
        return 0 if self.is_first else get_boundary_width(self.config, self.model, self.block_range.start)

    @property
    def output_width(self) -> int:
        """Last dimension of the output; 0 at the last stage."""
        return 0 if self.is_last else get_boundary_width(self.config, self.model, self.block_range.stop)

    # --- forward ---

    def forward(
        self, tokens: Tensor, hidden: Tensor | None = None, targets: Tensor | None = None, *, learn: bool = True
    ) -> ForwardRecord:
        """Run the forward pass: tokens and targets `[B, T]` int64, `hidden` as the previous stage returned it.

        All stages receive the tokens, the last one also the targets. Without `learn` there is no backward pass.
        """
        tokens, targets = tokens.to(self.device), None if targets is None else targets.to(self.device)
        inputs = None if hidden is None else hidden.to(self.device, torch.float32).detach().requires_grad_(learn)
        with torch.set_grad_enabled(learn):
            output = self.compute_output(tokens, inputs, targets)
        return ForwardRecord(tokens, inputs, targets, output.detach(), output if learn else None)

    def compute_output(self, tokens: Tensor, inputs: Tensor | None, targets: Tensor | None) -> Tensor:
        """Return the hidden state; at the last stage the loss, or the head's input without targets."""
        assert (inputs is None) == self.is_first, "the first stage has no hidden input, all others have one"
        with self.autocast():
            hidden = self.partition.embed_tokens(self.model, tokens) if inputs is None else inputs
            span = self.block_range
            hidden = self.partition.run_blocks(self.model, tokens, hidden, span.start, span.stop)
            if not self.is_last:
                return hidden
            features = self.partition.normalize_output(self.model, hidden)
            return features if targets is None else self.objective.compute_loss(features, targets)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    @torch.no_grad()
    def compute_nats(self, tokens: Tensor, hidden: Tensor | None, targets: Tensor) -> Tensor:
        """Return each target's nats `[B, T]`, fp32, for evaluation. Last stage only."""
        features = self.compute_features(tokens, hidden)
        return self.objective.compute_loss(features, targets.to(self.device), per_position=True).view_as(tokens)

    def compute_features(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        assert self.is_last, "only the last stage has a head"
        inputs = None if hidden is None else hidden.to(self.device, torch.float32)
        return self.compute_output(tokens.to(self.device), inputs, None)

    # --- sampling ---

    def build_cache(self) -> Any:
        """Return the cache of a text before its first token."""
        return self.partition.build_cache(self.model)

    @torch.no_grad()
    def advance(self, tokens: Tensor, hidden: Tensor | None, cache: Any) -> Tensor:
        """Read the tokens `[B, T]` that follow `cache`, and extend it. The cache is useless after an update.

        Return the input of the next stage; at the last stage the logits `[B, V]`, fp32, of the next token of each row.
        """
        tokens = tokens.to(self.device)
        with self.autocast():
            if hidden is None:
                hidden = self.partition.embed_tokens(self.model, tokens, cache)
            hidden = hidden.to(self.device, torch.float32)
            span = self.block_range
            hidden = self.partition.run_blocks(self.model, tokens, hidden, span.start, span.stop, cache)
            if not self.is_last:
                return hidden
            return self.model.logits(self.partition.normalize_output(self.model, hidden[:, -1:]))[:, 0].float()

    # --- backward ---

    def backward(
        self, record: ForwardRecord, gradient: Tensor | None = None, *, learn: bool = True
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradients of the input (None at the first stage) and of the parameters, in their order.

        `gradient` is the output's; None at the last stage, which differentiates the sum of nats divided by the
        micro-batch's positions. Without `learn` the parameters' gradients are not computed. Nothing is accumulated
        here; see `add_gradients`.
        """
        output, record.graph = record.graph, None
        assert output is not None, "a forward pass without learning, or a second backward pass"
        seed = torch.full_like(output, 1 / record.tokens.numel()) if gradient is None else gradient.to(output)
        inputs = [] if record.inputs is None else [record.inputs]
        trainable = list(self.parameters.values()) if learn else []
        if not inputs and not trainable:
            return None, []
        variables = [*inputs, *trainable]
        gradients = torch.autograd.grad(output, variables, seed, allow_unused=True)
        complete = [torch.zeros_like(v) if g is None else g for g, v in zip(gradients, variables, strict=True)]
        return (complete[0] if inputs else None), complete[len(inputs) :]

    def add_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Accumulate a micro-batch's gradients."""
        torch._foreach_add_(self.split_flat(self.gradient_sum), list(gradients))

    def clear_gradients(self) -> None:
        self.gradient_sum.zero_()

    def split_flat(self, flat: Tensor) -> list[Tensor]:
        """Return views of `[P]` numbers in the shapes of the parameters."""
        parts = flat.split([p.numel() for p in self.parameters.values()])
        return [part.view_as(p) for part, p in zip(parts, self.parameters.values(), strict=True)]

    # --- update ---

    def apply_update(self, mean: Tensor, factor: float, clip_scale: float = 1.0) -> None:
        """Make this step's update and clear the gradient sum.

        `mean [P]`: the sum of all peers divided by the micro-batches; `factor` scales the learning rate; `clip_scale`
        scales the gradient, equally at all stages.
        """
        mean = mean.to(self.device, torch.float32)
        self.optimizer.step(self.split_flat(mean), factor, self.version + 1, clip_scale)
        self.version += 1
        self.clear_gradients()

    def copy_state(self) -> dict[str, Tensor]:
        """Return a copy in main memory of weights and AdamW's two moments, fp32, with flat names for safetensors."""
        tensors = self.get_state_tensors()
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}

    def get_state_tensors(self) -> dict[str, Tensor]:
        kinds = {"weight": self.parameters, "average": self.optimizer.averages, "square": self.optimizer.squares}
        return {f"{kind}.{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor], version: int) -> None:
        """Load a peer's or a checkpoint's state; raise `StateError`, without changes, for another stage's."""
        expected = self.get_state_tensors()
        for name, tensor in expected.items():
            if name not in state or state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise StateError(f"stage {self.index}'s state has no {name} of the shape {tuple(tensor.shape)}")
        if len(state) != len(expected):
            raise StateError(f"this is another stage's state: it has {len(state)} tensors, not {len(expected)}")
        for name, tensor in expected.items():
            tensor.copy_(state[name])
        self.version = version
        self.clear_gradients()

    def compute_digest(self, *more: Tensor) -> str:
        """Return the sha256 of the weights followed by more tensors."""
        return update_hash(self.hash_weights(), more).hexdigest()

    def hash_weights(self) -> HashObject:
        """Return a sha256 object over the weights, to be continued."""
        return update_hash(hashlib.sha256(), self.parameters.values())


def update_hash(sha256: HashObject, tensors: Iterable[Tensor]) -> HashObject:
    for tensor in tensors:
        sha256.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return sha256


def squared_norm(mean: Tensor) -> float:
    """Return the squared norm of a gradient, summed in fp64. Another order gives other last digits.

    It works in chunks on a CPU: allocating all of it in fp64 takes fifteen times as long as the arithmetic.
    """
    flat = mean.detach().reshape(-1)
    size = CHUNK if flat.device.type == "cpu" else max(1, flat.numel())
    return sum(float(torch.dot(wide, wide)) for wide in (chunk.double() for chunk in flat.split(size)))


# --- construction ---


def build_model(config: SwarmConfig) -> LanguageModel:
    """Build the model as `dailytrain train` does from the same seed, without changing the random state."""
    module = load_architecture(config.arch)
    with BUILD_LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return module.Model(module.Config(**config.model)).train()


def partition_blocks(config: SwarmConfig, model: LanguageModel) -> tuple[range, ...]:
    """Return each stage's blocks of a whole model, balanced by the matrix parameters."""
    partition = get_partition(config.arch)
    before, behind = partition.get_end_parts(model)
    if config.stages > 1 and set(before) & set(behind):
        raise PartitionError("the first and the last stage cannot share a tied head: set model.tied_head to false")
    head = sum(count_matrix_parameters(getattr(holder, name)) for holder, name in behind)
    costs = tuple(count_matrix_parameters(block) for block in partition.get_blocks(model))
    return balance_blocks(costs, head, config.stages)


def count_matrix_parameters(part: nn.Module | nn.Parameter) -> int:
    """Return the number of parameters in a part's matrices, at least 1."""
    modules = part.modules() if isinstance(part, nn.Module) else ()
    return max(1, sum(module.weight.numel() for module in modules if isinstance(module, nn.Linear)))


def remove_other_stages(partition: Partition, model: LanguageModel, span: range) -> None:
    """Remove the parts of other stages. The rest keeps its names."""
    blocks = partition.get_blocks(model)
    before, behind = partition.get_end_parts(model)
    needed = {*(before if span.start == 0 else ()), *(behind if span.stop == len(blocks) else ())}
    for holder, name in {*before, *behind} - needed:
        delattr(holder, name)
    for number in range(len(blocks)):
        if number not in span:
            blocks[number] = nn.Identity()


def get_boundary_width(config: SwarmConfig, model: LanguageModel, done: int) -> int:
    """Return the last dimension of the tensor that leaves block `done - 1`."""
    width = model.gpt.config.n_embd if hasattr(model, "gpt") else model.config.width
    return get_partition(config.arch).count_streams(model.config, done) * width


def get_decayed_names(config: SwarmConfig, model: LanguageModel) -> frozenset[str]:
    """Return the parameters with weight decay: those of groups that have it in the architecture's recipe."""
    module = load_architecture(config.arch)
    groups = assign_parameters(model, module.recipe(module.Config(**config.model)))
    return frozenset(name for group, parameters in groups if group.weight_decay for name in parameters)


def build_optimizer(config: SwarmConfig, parameters: Mapping[str, Tensor], decayed: frozenset[str]) -> AdamW:
    return AdamW(parameters, decayed, config.learning_rate, config.weight_decay, config.betas, config.epsilon)
