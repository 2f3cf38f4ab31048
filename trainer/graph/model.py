"""A traced architecture as a model: what the training loop and the scorer run instead of an entry's Python."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from trainer.errors import to_one_line
from trainer.graph.build import GraphFunction, build_constants, build_function
from trainer.graph.files import GraphError, Initialization, Passes, StoredTensor, TracedArchitecture, iterate_values
from trainer.graph.initialization import compute_initial_tensors
from trainer.graph.operators import NGRAM_MEMORY, RANDOM_OPERATORS, bind_arguments, strip_variant
from trainer.models.base import ArchitectureConfig, LanguageModel, ParameterGroup, Recipe, Schedule

if TYPE_CHECKING:
    from trainer.models.ngram_memory import NGramMemory

PRODUCTS = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default, torch.ops.aten.mm.default)
VIEWS = (torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.slice.Tensor)


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
        self.vocabulary_size = int(traced.recipe["vocabulary_size"])
        self.training_passes = GraphPasses(traced.training, allow_random=True)
        self.evaluation_passes = GraphPasses(traced.evaluation, allow_random=False)
        saved = find_saved_buffers(traced.initialization)
        try:
            for description in traced.initialization.tensors:
                register_tensor(self, description, tensors[description.name], saved)
            for name in traced.initialization.constants:
                self.register_buffer(name, tensors[name], persistent=False)
        except KeyError as error:
            raise GraphError(f"a stored tensor has the name of a part of the model: {error.args[0]}") from error
        self.memories = build_memories(self, traced.training)

    @property
    def passes(self) -> GraphPasses:
        """The passes of the current mode."""
        return self.training_passes if self.training else self.evaluation_passes

    def features(self, tokens: Tensor) -> Tensor:
        length = tokens.size(1)
        if length > self.traced_length:
            raise ValueError(f"a row of {length} tokens is longer than the {self.traced_length} that were traced")
        if length < self.traced_length:
            tokens = F.pad(tokens, (0, self.traced_length - length))
        function = self.passes.features
        fetched: dict[str, Tensor] = {}
        if length == self.traced_length:
            fetched = {name: memory.fetched for name, memory in self.memories.items() if memory.fetched is not None}
        features: Tensor = function.module(tokens.device, tokens, *get_stored_tensors(self, function, fetched))[0]
        return features if length == self.traced_length else features[:, :length]

    def logits(self, features: Tensor) -> Tensor:
        return run_graph(self, self.passes.logits, features)

    def list_memories(self) -> list[NGramMemory]:
        return list(self.memories.values())

    def list_head_matrices(self) -> list[str]:
        """Return the names of the parameters that the head of training reads in matrix products alone: autocast casts
        all of these. One that a forged head reads under two names is left out: a replacement would have one of them."""
        function = self.training_passes.logits
        counts = Counter(id(tensor) for tensor in get_stored_tensors(self, function))
        parameters = {name: id(tensor) for name, tensor in self.named_parameters(remove_duplicate=False)}
        names = [name for name in find_product_matrices(function) if name in parameters]
        return [name for name in names if counts[parameters[name]] == 1]

    def compute_logits(self, features: Tensor, replacements: Mapping[str, Tensor]) -> Tensor:
        """Return the logits with other tensors in place of stored ones."""
        function = self.passes.logits
        stored = get_stored_tensors(self, function, replacements)
        result: Tensor = function.module(features.device, features, *stored)[0]
        return result


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


def find_product_matrices(function: GraphFunction) -> list[str]:
    """Return the stored tensors that a graph reads only as a matrix of a product, possibly transposed or cut."""
    placeholders = {node.name: node for node in function.module.graph.nodes if node.op == "placeholder"}
    nodes = {name: placeholders[f"stored_{number}"] for number, name in enumerate(function.stored_names)}
    return [name for name, node in nodes.items() if node.users and is_product_matrix(node)]


def is_product_matrix(node: fx.Node) -> bool:
    return all(
        (user.target in PRODUCTS and node not in user.args[2:]) or (user.target in VIEWS and is_product_matrix(user))
        for user in node.users
    )


def get_stored_tensors(
    model: nn.Module, function: GraphFunction, replacements: Mapping[str, Tensor] = MappingProxyType({})
) -> list[Tensor]:
    """Return the parameters, buffers and constants that a graph reads, in its order, or what replaces them."""
    return [replacements[n] if n in replacements else get_stored(model, n) for n in function.stored_names]


def build_memories(model: nn.Module, passes: Passes) -> dict[str, NGramMemory]:
    """Return what reads the tables of n-grams in training, by their names. They are no modules of the model.

    Raises `GraphError` for a table that is read in another way, too: its gradient would be lost.
    """
    calls = [call for call in passes.features.iterate_calls() if call.operator == NGRAM_MEMORY]
    if not calls:
        return {}
    from trainer.models.ngram_memory import NGramMemory

    memories: dict[str, NGramMemory] = {}
    for call in calls:
        given = bind_arguments(call)
        name = str(given["table"]).removeprefix("@")
        table = get_stored(model, name)
        if not isinstance(table, nn.Parameter) or table.dim() != 3:
            raise GraphError(f"{name} is read as a memory and is no parameter [rows, slices, width]")
        memories[name] = NGramMemory(table, given["orders"], given["hashes"], given["end_of_text"])
    tables = {id(memory.table): name for name, memory in memories.items()}
    reads = [
        value
        for graph in (passes.features, passes.logits)
        for call in graph.iterate_calls()
        for value in iterate_values([call.arguments, list((call.keywords or {}).values())])
        if isinstance(value, str) and value.startswith("@") and id(get_stored(model, value[1:])) in tables
    ]
    if len(reads) > len(memories) or len(tables) < len(memories):
        raise GraphError(f"{reads[-1][1:]} is a memory's table, which a graph reads once and in no other way")
    return memories


def find_saved_buffers(initialization: Initialization) -> set[str]:
    """Return the buffers that checkpoints hold: those that are persistent, and those with random values.

    A buffer counts as random if the initialization relates it to a random operator by any chain of calls.
    """
    graph = initialization.graph
    groups = [{number} for number in range(len(graph.calls))]  # calls that are related, the same object for each
    is_random = [strip_variant(call.operator) in RANDOM_OPERATORS for call in graph.calls]
    for number, call in enumerate(graph.calls):
        for value in iterate_values([call.arguments, list((call.keywords or {}).values())]):
            other = read_call_number(value)
            if other is None or groups[other] is groups[number]:
                continue
            smaller, larger = sorted((groups[other], groups[number]), key=len)
            larger |= smaller
            for member in smaller:
                groups[member] = larger
    saved = set()
    for description, value in zip(initialization.tensors, graph.outputs, strict=True):
        number = read_call_number(value)
        has_random_values = number is not None and any(is_random[member] for member in groups[number])
        if description.kind == "buffer" or has_random_values:
            saved.add(description.name)
    return saved


def read_call_number(value: Any) -> int | None:
    """Return the number of the call whose result a reference is; None for other values."""
    is_result = isinstance(value, str) and value.startswith("%") and value[1:].isdecimal()
    return int(value[1:]) if is_result else None


def register_tensor(root: nn.Module, description: StoredTensor, value: Tensor, saved: Collection[str] = ()) -> None:
    """Add a parameter or buffer under its dotted names, creating the modules on the way.

    `saved`: the names of buffers that checkpoints hold.
    """
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
            parent.register_buffer(own_name, tensor, persistent=description.name in saved)


def get_stored(root: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer by its dotted name."""
    path, _, own_name = name.rpartition(".")
    tensor = getattr(root.get_submodule(path), own_name)
    assert isinstance(tensor, torch.Tensor)
    return tensor


# --- the recipe -------------------------------------------------------------------------------------------------------


MAX_PATTERNS, MAX_PATTERN_LENGTH = 500, 1_000  # each is compared with each parameter's name


def describe_recipe(recipe: Recipe, config: ArchitectureConfig) -> dict[str, Any]:
    """Return the recipe and the sizes as plain data."""
    return {
        "vocabulary_size": config.vocabulary_size,
        "sequence_length": config.sequence_length,
        "model": dataclasses.asdict(config),  # type: ignore[call-overload]
        "recipe": dataclasses.asdict(recipe),
    }


def read_recipe(traced: TracedArchitecture) -> Recipe:
    """Return the recipe of a traced architecture. Raises `GraphError`."""
    try:
        table = dict(traced.recipe["recipe"])
        groups = [
            ParameterGroup(**{**group, "match": tuple(group["match"]), "betas": tuple(group["betas"])})
            for group in table["groups"]
        ]
        patterns = [pattern for group in groups for pattern in group.match]
        if len(patterns) > MAX_PATTERNS or max(map(len, patterns), default=0) > MAX_PATTERN_LENGTH:
            raise ValueError(f"its groups have more than {MAX_PATTERNS} patterns of {MAX_PATTERN_LENGTH:,} characters")
        return Recipe(**{**table, "groups": tuple(groups), "schedule": Schedule(**table["schedule"])})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"recipe.json is not a recipe: {to_one_line(error)}") from error
