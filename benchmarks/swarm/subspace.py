"""Loss of a GPT-2 whose stages exchange coordinates in a subspace, against the same model in exact mode.

    python -m benchmarks.swarm.subspace --steps 200 --ranks 8,16,32,64,128 --out subspace.json

After "Protocol Models" (arXiv 2506.01260). All stages have one orthonormal basis `U [width, k]`. The matrices at the
end of a branch are `U A` with a trainable `A [k, inputs]`. The embeddings are fixed random ones plus trainable ones in
the subspace. So the residual stream minus the fixed embeddings stays in the subspace, and a boundary sends its `k`
coordinates for each token. The next stage has the tokens, thus the fixed embeddings. Gradients are as short, because
the parameters before a boundary depend on the coordinates only. For this model the messages lose nothing
(tests/trainer/swarm/test_subspace.py); what is lost is a part of the model.

Choices of this experiment: AdamW trains `A` itself, the basis is random and never changes, and positions are learned.
The model is `nanogpt` with an untied head, in one process.
"""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.swarm.wire_loss import DEV_ROWS, LAST, build_config, measure_once
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.models.nanogpt import Config, Model
from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import build_model, build_optimizer, squared_norm
from trainer.training.objective import Objective


class SubspaceLinear(nn.Module):
    """A linear layer whose outputs are in the subspace; it starts as the projection of another layer."""

    def __init__(self, linear: nn.Linear, basis: Tensor) -> None:
        super().__init__()
        self.basis = basis
        self.coordinates = nn.Parameter(basis.T @ linear.weight.detach())  # `[k, inputs]`
        self.bias = nn.Parameter(basis.T @ linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.coordinates, self.bias) @ self.basis.T


class SubspaceModel(Model):
    """`nanogpt` with a residual stream that is confined to fixed embeddings plus a subspace."""

    def confine(self, rank: int, boundaries: Sequence[int], seed: int) -> None:
        """Choose a subspace of this dimension. `boundaries`: the blocks before which a stage begins."""
        rng = torch.Generator().manual_seed(seed)
        self.basis = torch.linalg.qr(torch.randn(self.config.width, rank, generator=rng)).Q
        self.boundaries = tuple(boundaries)
        self.fixed_tokens, self.fixed_positions = self.embedding.weight.detach(), self.positions.weight.detach()
        self.embedding = nn.Embedding.from_pretrained(torch.zeros(len(self.fixed_tokens), rank), freeze=False)
        self.positions = nn.Embedding.from_pretrained(torch.zeros(len(self.fixed_positions), rank), freeze=False)
        for block in self.blocks:
            block.output, block.down = (SubspaceLinear(each, self.basis) for each in (block.output, block.down))

    def embed_fixed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.fixed_tokens) + self.fixed_positions[: tokens.size(1)]

    def encode(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the message of a boundary `[B, T, k]` for the residual stream `[B, T, width]`."""
        return (x - self.embed_fixed(tokens)) @ self.basis

    def decode(self, message: Tensor, tokens: Tensor) -> Tensor:
        return self.embed_fixed(tokens) + message @ self.basis.T

    def features(self, tokens: Tensor) -> Tensor:
        x = self.decode(self.embedding(tokens) + self.positions.weight[: tokens.size(1)], tokens)
        for number, block in enumerate(self.blocks):
            if number in self.boundaries:
                x = self.decode(self.encode(x, tokens), tokens)
            x, _ = block(x)
        return self.norm(x)


def build_subspace_model(config: SwarmConfig, rank: int, boundaries: Sequence[int]) -> SubspaceModel:
    """Return the model of a configuration, with the same initial weights where it has the same ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # as in `build_model`
        model = SubspaceModel(Config(**config.model))
    model.confine(rank, boundaries, config.seed)
    return model


def train(config: SwarmConfig, dataset: Dataset, model: Model) -> dict[str, float]:
    """Train; return the mean training loss of the last steps and the loss on dev, in nats per target."""
    batches, objective, losses = Batches(dataset, config), Objective(model), []
    parameters = dict(model.named_parameters())
    decayed = frozenset(name for name, parameter in parameters.items() if parameter.ndim > 1)  # nanogpt's recipe
    optimizer = build_optimizer(config, parameters, decayed)
    for step in range(config.steps):
        nats, means = 0.0, [torch.zeros_like(parameter) for parameter in parameters.values()]
        for number in range(config.micro_batches):
            tokens, targets = batches.get_batch(step, number)
            loss = objective(tokens, targets)
            share = loss / tokens.numel() / config.micro_batches
            for mean, gradient in zip(means, torch.autograd.grad(share, list(parameters.values())), strict=True):
                mean.add_(gradient)
            nats += float(loss.detach())
        scale = config.compute_clip_scale(sum(map(squared_norm, means)))
        optimizer.step(means, config.get_rate_factor(step), step + 1, scale)
        losses.append(nats / batches.count_targets(step))
    return {"train": sum(losses[-LAST:]) / LAST, "dev": evaluate(objective, batches)}


@torch.no_grad()
def evaluate(objective: Objective, batches: Batches) -> float:
    pairs = list(batches.iter_dev(DEV_ROWS))
    return sum(float(objective(*pair)) for pair in pairs) / sum(int((y >= 0).sum()) for _, y in pairs)


def measure_rank(config: SwarmConfig, dataset: Dataset, rank: int, boundaries: list[int]) -> dict[str, Any]:
    """Train with this rank (0: without a subspace) and return the losses, the size of messages and of the model."""
    model = build_subspace_model(config, rank, boundaries) if rank else build_model(config)
    assert isinstance(model, Model)
    size = 4 * (rank or int(config.model["width"]))  # bytes of a token in fp32, for each boundary and direction
    return train(config, dataset, model) | {
        "token_bytes": size,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.swarm.subspace", description="Loss with subspace-constrained stages.")
    parser.add_argument("--corpus", default="files:../shared/data/text/tinyshakespeare/input.txt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--ranks", default="8,16,32,64,128", help="dimensions of the subspace")
    parser.add_argument(
        "--out", type=Path, default=Path("subspace.json"), help="file for the results; those in it are kept"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepare_dataset(args.corpus, "bpe:512", Path(folder) / "dataset", 2**20)
        for seed in map(int, args.seeds.split(",")):
            config = build_config("nanogpt", args.width, args.stages, args.steps, seed, dataset)
            config = config.model_copy(update={"model": config.model | {"tied_head": False}})
            depth = int(config.model["depth"])
            boundaries = [depth * stage // args.stages for stage in range(1, args.stages)]
            for rank in (0, *map(int, args.ranks.split(","))):
                name = f"width {args.width}, seed {seed}, " + (f"rank {rank}" if rank else "exact")
                measure_once(args.out, name, partial(measure_rank, config, dataset, rank, boundaries))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
