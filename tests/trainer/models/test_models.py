"""Every architecture fulfills the contract of `trainer/models/base.py`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from tests.support.gpt_models import OPTIONS
from trainer.models import ARCHITECTURES, UnknownArchitectureError, load_architecture, nanogpt
from trainer.models.base import LanguageModel
from trainer.optim import optimizers

SIZES = {
    "gpt": {"depth": 2, "width": 32, "heads": 2, "end_of_text": 7},
    "nanogpt": {"depth": 2, "width": 32, "heads": 2},
    "smear": {"depth": 2, "width": 32, "heads": 2},
    "litgpt": {"name": "pythia-14m"},
    "rwkv5": {"depth": 2, "width": 64},
    "moe": {"depth": 2, "width": 32, "heads": 2, "experts": 4, "expert_width": 16, "shared_width": 32, "capacity": 0.5},
}
V, T = 384, 24


def build_tiny(model: str, **fields: Any) -> tuple[LanguageModel, Any]:
    """Return a model and its configuration. `model`: name of an architecture, or of an option of gpt."""
    arch = "gpt" if model in OPTIONS else model
    module = load_architecture(arch)
    config = dataclasses.replace(module.Config.sized(2, V, T), **{**SIZES[arch], **OPTIONS.get(model, {}), **fields})
    torch.manual_seed(0)
    return module.Model(config), config


def build_moved(name: str) -> LanguageModel:
    """Output projections start at zero: without this a model could see nothing but its own position and pass."""
    model, _ = build_tiny(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(params=[*ARCHITECTURES, *OPTIONS])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@torch.no_grad()
def test_logits_depend_on_earlier_tokens_alone(name: str) -> None:
    model, tokens = build_moved(name), torch.randint(8, V, (1, T))
    answers = model(tokens)
    assert answers.shape == (1, T, V)
    assert answers.dtype == torch.float32
    assert torch.equal(model.logits(model.features(tokens)), answers)
    for cut in (1, 9, T - 1):
        changed = tokens.clone()
        changed[:, cut:] = 8 + (changed[:, cut:] + 7) % (V - 8)  # no end of text
        torch.testing.assert_close(model(changed)[:, :cut], answers[:, :cut], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens[:, :cut]), answers[:, :cut], rtol=1e-5, atol=1e-5)
    changed = tokens.clone()
    changed[:, 0] += 1
    assert (model(changed) - answers).abs().amax(-1).min() > 0


@torch.no_grad()
def test_logits_do_not_depend_on_batch_composition_or_earlier_passes(name: str) -> None:
    model, tokens = build_moved(name), torch.randint(0, V, (4, T))
    together = model(tokens)
    alone = torch.cat([model(row[None]) for row in tokens.flip(0)]).flip(0)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert torch.equal(model(tokens), together)


@torch.no_grad()
def test_logits_in_bf16_are_close_to_fp32(name: str) -> None:
    model, tokens = build_moved(name), torch.randint(0, V, (2, T))
    whole = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(tokens).float()
    assert (mixed - whole).square().mean() < 0.02 * whole.square().mean()


def test_untrained_model_predicts_nearly_uniform(name: str) -> None:
    model, _ = build_tiny(name, vocabulary_size=301)
    tokens = torch.randint(0, 301, (4, T + 1))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(301), rel=0.06)


def test_recipe_covers_every_parameter_once(name: str) -> None:
    model, config = build_tiny(name)
    recipe = load_architecture("gpt" if name in OPTIONS else name).recipe(config)
    names = [parameter for _, mine in optimizers.assign_parameters(model, recipe) for parameter in mine]
    assert sorted(names) == sorted(dict(model.named_parameters()))
    assert type(config)(**json.loads(json.dumps(dataclasses.asdict(config)))) == config, "as a run's folder holds it"


def test_load_architecture_unknown_name_lists_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="gpt, nanogpt, litgpt, smear, rwkv5, moe"):
        load_architecture("gtp")


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        *(("gpt", fields, "gpt: ") for fields in ({"heads": 3}, {"depth": 0}, {"width": 2, "heads": 2})),
        *(("gpt", fields, "gpt: ") for fields in ({"windows": "LX"}, {"windows": ""}, {"short_window": 0})),
        *(("gpt", fields, "must be positive|gpt: ") for fields in ({"softcap": -1.0}, {"mlp_init": 0.0})),
        ("gpt", {"memory_rows": -1}, "at least 0"),
        *(("gpt", {"memory_rows": 9, "memory_orders": orders}, "different lengths") for orders in ("2,2", "0")),
        *(
            ("gpt", {"memory_rows": 9, name: "two"}, "numbers with commas")
            for name in ("memory_orders", "memory_blocks")
        ),
        ("gpt", {"memory_rows": 9, "memory_blocks": "0,2"}, "depth 2 lacks"),
        *(("nanogpt", fields, "nanogpt: ") for fields in ({"heads": 3}, {"depth": 0}, {"heads": 0})),
        *(("moe", {name: value}, name) for name, value in (("chosen", 5), ("capacity", 0.0), ("expert_width", 0))),
        ("litgpt", {"name": "pythia-15m"}, "no configuration named 'pythia-15m'"),
        ("rwkv5", {"width": 100}, "width 100 must be a multiple of 64"),
        ("rwkv5", {"width": 0}, "width 0 must be a multiple of 64"),
        ("rwkv5", {"depth": 1}, "initial values need at least 2 blocks"),
        ("rwkv5", {"version": 5.3}, "version 5.3 is not one of 5.0, 5.1 and 5.2"),
        ("rwkv5", {"vocabulary_size": 0}, "vocabulary of 0"),
    ],
)
def test_config_with_impossible_fields_is_refused(name: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_tiny(name, **fields)


def test_nanogpt_depth_12_has_gpt2_size() -> None:
    config = nanogpt.Config.sized(12, 50257, 1024)
    assert (config.depth, config.width, config.heads) == (12, 768, 12)
    with torch.device("meta"):
        model = nanogpt.Model(config)
    # GPT-2's 124,439,808 and 47 rows of padding.
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + 47 * 768


GPT2_NAMES = {
    "embedding": "wte",
    "positions": "wpe",
    "blocks": "h",
    "norm_1": "ln_1",
    "norm_2": "ln_2",
    "norm": "ln_f",
    "query_key_value": "attn.c_attn",
    "output": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
"""Parts of the names of weights, as transformers has them."""


@pytest.mark.slow
@torch.no_grad()
def test_nanogpt_logits_equal_gpt2_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = nanogpt.Model(nanogpt.Config(100, 16, depth=2, width=32, heads=4))
    sizes = {"vocab_size": 100, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    reference = GPT2LMHeadModel(GPT2Config(**sizes, activation_function="gelu")).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    for name, value in model.state_dict().items():
        theirs = ".".join(GPT2_NAMES.get(part, part) for part in name.split("."))
        value = value.T if ".c_" in theirs and value.ndim == 2 else value[:100] if theirs == "wte.weight" else value
        reference.transformer.get_parameter(theirs).copy_(value)
    tokens = torch.randint(0, 100, (2, 16))
    torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-4)
