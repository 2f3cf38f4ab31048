"""One stage of a model: its slice of the blocks, its sum of gradients, its half of the optimizer.

A stage is made from the run's configuration and its own number alone: the whole model is built from the seed as
`dailytrain train` would build it, and what belongs to others is let go. So the stages one behind another are that
model, to the bit, and parameters keep the whole model's names.

Not covered: a model that does not fit into main memory once, at the start. Peers with another CPU may draw first
weights that differ in their last bits (RWKV-5's are orthogonal), so all but a stage's first peer load its state.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.data.loader import IGNORE_INDEX
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.optim.optimizers import assign
from trainer.swarm.adamw import PIECE, AdamW
from trainer.swarm.config import SwarmConfig
from trainer.swarm.cuts import Cut, CutError, cut_of, share
from trainer.training.objective import Objective

KINDS = ("weight", "average", "square")
"""What `Stage.state` has of each parameter: itself and AdamW's two momenta, all fp32."""

BUILDING = threading.Lock()
"""torch's random numbers are the process's: one model is built at a time."""


class StateError(ValueError):
    """This is not the state of this stage."""


@dataclass
class Passage:
    """A micro-batch at a stage, between its way forward and its way back. It may take the way back once."""

    tokens: Tensor
    inputs: Tensor | None
    """`[B, T, width x streams]`, fp32, what gradients are found of; None at the first stage."""
    targets: Tensor | None
    """At the last stage."""
    output: Tensor
    """What goes to the next stage; at the last one the sum of nats. Without a graph."""
    graph: Tensor | None
    """The output with all it was made from; None where that is computed again on the way back."""

    @property
    def nats(self) -> float:
        return float(self.output)

    @property
    def count(self) -> int:
        """Targets that are learned."""
        assert self.targets is not None
        return int((self.targets != IGNORE_INDEX).sum())


class Stage:
    """Not for several threads: the worker's one lane calls it."""

    def __init__(
        self, config: SwarmConfig, index: int, device: str | torch.device = "cpu", recompute: bool = False
    ) -> None:
        """`recompute`: keep a micro-batch's input only, and compute it again on the way back."""
        if not 0 <= index < config.stages:
            raise CutError(f"there is no stage {index} of {config.stages}")
        self.config, self.index, self.device, self.recompute = config, index, torch.device(device), recompute
        self.cut, model = cut_of(config.arch), whole_model(config)
        self.span = spans(config, model)[index]
        decayed = decayed_names(config, model)
        keep_only(self.cut, model, self.span)
        self.model = model.to(self.device)
        self.objective = Objective(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = optimizer_of(config, self.parameters, decayed)
        self.version = 0
        """Updates made: the step that is being worked on."""
        self.total = torch.zeros(sum(p.numel() for p in self.parameters.values()), device=self.device)
        """`[P]`, fp32: the sum of what `add` was given, parameters in their order."""

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.config.stages - 1

    @property
    def input_width(self) -> int:
        """Last dimension of what this stage is given, 0 at the first one."""
        return 0 if self.first else boundary_width(self.config, self.model, self.span.start)

    @property
    def output_width(self) -> int:
        """Last dimension of what it passes on, 0 at the last one."""
        return 0 if self.last else boundary_width(self.config, self.model, self.span.stop)

    # --- forward ---

    def forward(
        self, tokens: Tensor, hidden: Tensor | None = None, targets: Tensor | None = None, *, learn: bool = True
    ) -> Passage:
        """Let a micro-batch pass: tokens and targets `[B, T]` int64, hidden as the stage before put it out.

        All stages get the tokens, the last one the targets, too. `learn` is false where nothing will come back.
        """
        tokens, targets = tokens.to(self.device), None if targets is None else targets.to(self.device)
        inputs = None if hidden is None else hidden.to(self.device, torch.float32).detach().requires_grad_(learn)
        with torch.set_grad_enabled(learn and not self.recompute):
            output = self.compute(tokens, inputs, targets)
        return Passage(tokens, inputs, targets, output.detach(), output if learn and not self.recompute else None)

    def compute(self, tokens: Tensor, inputs: Tensor | None, targets: Tensor | None) -> Tensor:
        assert (inputs is None) == self.first, "the first stage reads tokens, others what came before them"
        with self.autocast():
            hidden = self.cut.embed(self.model, tokens) if inputs is None else inputs
            hidden = self.cut.through(self.model, tokens, hidden, self.span.start, self.span.stop)
            if not self.last:
                return hidden
            assert targets is not None
            return self.objective.loss_of(self.cut.finish(self.model, hidden), targets)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    @torch.no_grad()
    def nats(self, tokens: Tensor, hidden: Tensor | None, targets: Tensor) -> Tensor:
        """Return each target's nats `[B, T]`, fp32, for evaluation. The last stage's."""
        return self.objective.loss_of(self.features(tokens, hidden), targets.to(self.device), each=True).view_as(tokens)

    @torch.no_grad()
    def next_logits(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the logits `[B, V]`, fp32, of the token that follows each row, for sampling. The last stage's."""
        with self.autocast():
            return self.model.logits(self.features(tokens, hidden)[:, -1:])[:, 0].float()

    def features(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        assert self.last, "only the last stage has a head"
        tokens, hidden = tokens.to(self.device), None if hidden is None else hidden.to(self.device, torch.float32)
        with self.autocast():
            hidden = self.cut.embed(self.model, tokens) if hidden is None else hidden
            hidden = self.cut.through(self.model, tokens, hidden, self.span.start, self.span.stop)
            return self.cut.finish(self.model, hidden)

    # --- backward ---

    def backward(
        self, passage: Passage, gradient: Tensor | None = None, *, learn: bool = True
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Return the gradients of what came in (None at the first stage) and of the parameters, in their order.

        `gradient` is that of the output, None at the last stage, where what is differentiated is the sum of nats over
        the micro-batch's positions. Without `learn` those of the parameters are left out: nobody wants them again.
        Nothing is added to anything yet: `add` does that.
        """
        output = passage.graph
        if output is None:
            with torch.enable_grad():
                output = self.compute(passage.tokens, passage.inputs, passage.targets)
        passage.graph = None
        seed = torch.full_like(output, 1 / passage.tokens.numel()) if gradient is None else gradient.to(output)
        wanted = [] if passage.inputs is None else [passage.inputs]
        learned = list(self.parameters.values()) if learn else []
        if not wanted and not learned:
            return None, []
        found = torch.autograd.grad(output, [*wanted, *learned], seed, allow_unused=True)
        complete = [torch.zeros_like(of) if g is None else g for g, of in zip(found, [*wanted, *learned], strict=True)]
        return (complete[0] if wanted else None), complete[len(wanted) :]

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add a micro-batch's gradients to the sum."""
        torch._foreach_add_(self.apart(self.total), list(gradients))

    def clear(self) -> None:
        self.total.zero_()

    def apart(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of `[P]` numbers in the shapes of the parameters. They share its memory."""
        parts = flat.split([p.numel() for p in self.parameters.values()])
        return [part.view_as(p) for part, p in zip(parts, self.parameters.values(), strict=True)]

    # --- update ---

    def apply(self, mean: Tensor, factor: float, clip_scale: float = 1.0) -> None:
        """Make this step's update and clear the sum.

        `mean [P]`: all peers' sums over the number of micro-batches; `factor`: on the learning rate; `clip_scale`: on
        the gradient, the same at all stages.
        """
        mean = mean.to(self.device, torch.float32)
        self.optimizer.step(self.apart(mean), factor, self.version + 1, clip_scale)
        self.version += 1
        self.clear()

    def state(self) -> dict[str, Tensor]:
        """Return a copy of weights and momenta in main memory: flat names, as safetensors wants them."""
        held = zip(KINDS, (self.parameters, self.optimizer.averages, self.optimizer.squares), strict=True)
        return {
            f"{kind}.{name}": tensor.detach().to("cpu", copy=True).contiguous()
            for kind, tensors in held
            for name, tensor in tensors.items()
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Be where a peer of this stage is, or a checkpoint was; raise `StateError`, changing nothing, for others'."""
        mine = dict(zip(KINDS, (self.parameters, self.optimizer.averages, self.optimizer.squares), strict=True))
        wanted = {f"{kind}.{name}": tensor for kind, tensors in mine.items() for name, tensor in tensors.items()}
        for name, tensor in wanted.items():
            if name not in state or state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise StateError(f"stage {self.index}'s state has no {name} of the shape {tuple(tensor.shape)}")
        if len(state) != len(wanted):
            raise StateError(f"this is another stage's state: it has {len(state)} tensors, not {len(wanted)}")
        for name, tensor in wanted.items():
            tensor.copy_(state[name])
        self.version = version
        self.clear()

    def digest(self, *more: Tensor) -> str:
        """Return the sha256 of the weights, and of more tensors behind them."""
        return fed(self.hashed(), more).hexdigest()

    def hashed(self) -> hashlib._Hash:
        """Return a sha256 that has been fed the weights, and takes more."""
        return fed(hashlib.sha256(), self.parameters.values())


def fed(found: hashlib._Hash, tensors: Iterable[Tensor]) -> hashlib._Hash:
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found


def squared_norm(mean: Tensor) -> float:
    """Return the squared length of a gradient, summed in fp64. In another order its last digits differ.

    Piece by piece on a CPU: fresh memory for all of it in fp64 takes fifteen times as long as the arithmetic.
    """
    flat = mean.detach().reshape(-1)
    size = PIECE if flat.device.type == "cpu" else max(1, flat.numel())
    return sum(float(torch.dot(wide, wide)) for wide in (piece.double() for piece in flat.split(size)))


# --- making it --------------------------------------------------------------------------------------------------------


def whole_model(config: SwarmConfig) -> LanguageModel:
    """Build the model as `dailytrain train` does from the same seed; other random numbers are left alone."""
    module = load_architecture(config.arch)
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return module.Model(module.Config(**config.model)).train()


def spans(config: SwarmConfig, model: LanguageModel) -> tuple[range, ...]:
    """Return each stage's blocks of a whole model, evenly by the parameters that a token is multiplied by."""
    cut = cut_of(config.arch)
    cut.check(model)
    _, behind = cut.ends(model)
    head = sum(multiplied(getattr(holder, name)) for holder, name in behind)
    return share(tuple(multiplied(block) for block in cut.blocks(model)), head, config.stages)


def multiplied(part: nn.Module | nn.Parameter) -> int:
    """Return how many parameters a token is multiplied by in this part: its matrices', at least 1."""
    modules = part.modules() if isinstance(part, nn.Module) else ()
    return max(1, sum(module.weight.numel() for module in modules if isinstance(module, nn.Linear)))


def keep_only(cut: Cut, model: LanguageModel, span: range) -> None:
    """Let go of what is not this stage's. What stays keeps its name."""
    blocks = cut.blocks(model)
    before, behind = cut.ends(model)
    for holder, name in (*(before if span.start > 0 else ()), *(behind if span.stop < len(blocks) else ())):
        delattr(holder, name)
    for number in range(len(blocks)):
        if number not in span:
            blocks[number] = nn.Identity()


def boundary_width(config: SwarmConfig, model: LanguageModel, done: int) -> int:
    cut = cut_of(config.arch)
    return cut.streams(model.config, done) * model_width(model)


def model_width(model: LanguageModel) -> int:
    """Return the width of the residual stream."""
    return model.gpt.config.n_embd if hasattr(model, "gpt") else model.config.width


def decayed_names(config: SwarmConfig, model: LanguageModel) -> frozenset[str]:
    """Return whose weights decay: those whose group does in the architecture's own recipe."""
    module = load_architecture(config.arch)
    groups = assign(model, module.recipe(module.Config(**config.model)))
    return frozenset(name for group, parameters in groups if group.weight_decay for name in parameters)


def optimizer_of(config: SwarmConfig, parameters: Mapping[str, Tensor], decayed: frozenset[str]) -> AdamW:
    return AdamW(parameters, decayed, config.learning_rate, config.weight_decay, config.betas, config.epsilon)
