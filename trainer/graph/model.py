"""A traced architecture as a model: what the training loop and the scorer run instead of an entry's Python."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.graph.build import GraphFunction, build_constants, build_function
from trainer.graph.initialization import compute_initial_tensors
from trainer.graph.schema import GraphError, Passes, StoredTensor, TracedArchitecture
from trainer.models.base import LanguageModel


class GraphPasses:
    """The functions of `train.json` or `eval.json`."""

    def __init__(self, passes: Passes, allow_random: bool) -> None:
        self.features: GraphFunction = build_function(passes.features, allow_random=allow_random)
        self.logits: GraphFunction = build_function(passes.logits, allow_random=allow_random)


class GraphModel(LanguageModel):
    """Computes the graphs of a traced architecture. Parameters have the names of the architecture's own.

    Rows shorter than the traced length are padded at their end, which a causal model does not see.
    """

    def __init__(self, traced: TracedArchitecture, tensors: Mapping[str, Tensor]) -> None:
        """`tensors`: the stored tensors and the constants by name."""
        super().__init__()
        self.traced_length = int(traced.training.features.inputs[0].shape[1])
        self.traced_passes = {
            True: GraphPasses(traced.training, allow_random=True),
            False: GraphPasses(traced.evaluation, allow_random=False),
        }
        for description in traced.initialization.tensors:
            register_tensor(self, description, tensors[description.name])
        for name in traced.initialization.constants:
            self.register_buffer(name, tensors[name], persistent=False)

    def features(self, tokens: Tensor) -> Tensor:
        length = tokens.size(1)
        if length > self.traced_length:
            raise ValueError(f"a row of {length} tokens is longer than the {self.traced_length} that were traced")
        if length < self.traced_length:
            tokens = F.pad(tokens, (0, self.traced_length - length))
        features = run_graph(self, self.traced_passes[self.training].features, tokens)
        return features if length == self.traced_length else features[:, :length]

    def logits(self, features: Tensor) -> Tensor:
        return run_graph(self, self.traced_passes[self.training].logits, features)


def build_model(traced: TracedArchitecture) -> GraphModel:
    """Return the model on the CPU, initialized from the current random state."""
    tensors = compute_initial_tensors(traced.initialization)
    return GraphModel(traced, {**tensors, **build_constants(traced.initialization)})


def build_model_without_data(traced: TracedArchitecture) -> GraphModel:
    """Return the model on torch's `meta` device, which computes shapes only."""
    stored = {
        tensor.name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
        for tensor in traced.initialization.tensors
    }
    constants = {name: tensor.to("meta") for name, tensor in build_constants(traced.initialization).items()}
    return GraphModel(traced, {**stored, **constants})


def run_graph(model: nn.Module, function: GraphFunction, value: Tensor) -> Tensor:
    """Call a graph of one input and one output with the model's tensors."""
    result: Tensor = function.module(value.device, value, *get_stored_tensors(model, function))[0]
    return result


def get_stored_tensors(model: nn.Module, function: GraphFunction) -> list[Tensor]:
    """Return the parameters, buffers and constants that a graph reads, in its order."""
    return [get_stored(model, name) for name in function.stored_names]


def register_tensor(root: nn.Module, description: StoredTensor, value: Tensor) -> None:
    """Add a parameter or buffer under its dotted names, creating the modules on the way."""
    tensor = nn.Parameter(value) if description.kind == "parameter" else value
    for name in (description.name, *description.other_names):
        path, _, own_name = name.rpartition(".")
        if hasattr(LanguageModel, name.partition(".")[0]):
            raise GraphError(f"{name} has the name of a part of LanguageModel: rename it")
        parent = root
        for part in path.split(".") if path else ():
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        if isinstance(tensor, nn.Parameter):
            parent.register_parameter(own_name, tensor)
        else:
            parent.register_buffer(own_name, tensor, persistent=description.kind == "buffer")


def get_stored(root: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer by its dotted name."""
    path, _, own_name = name.rpartition(".")
    tensor = getattr(root.get_submodule(path), own_name)
    assert isinstance(tensor, torch.Tensor)
    return tensor
