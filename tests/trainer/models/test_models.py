"""Every architecture fulfills the contract of `trainer/models/base.py`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from trainer.models import ARCHITECTURES, UnknownArchitectureError, load_architecture
from trainer.models.base import LanguageModel
from trainer.optim import optimizers

SIZES = {
    "gpt": {"depth": 2, "width": 32, "heads": 2},
    "nanogpt": {"depth": 2, "width": 32, "heads": 2},
    "smear": {"depth": 2, "width": 32, "heads": 2},
    "litgpt": {"name": "pythia-14m"},
    "rwkv5": {"depth": 2, "width": 64},
    "moe": {"depth": 2, "width": 32, "heads": 2, "experts": 4, "expert_width": 16, "shared_width": 32, "capacity": 0.5},
}
PARAMETERS = {"gpt": 61_546, "nanogpt": 38_528, "smear": 61_517, "litgpt": 1_288_192, "rwkv5": 157_696, "moe": 57_714}
V, T = 384, 24


def build_tiny(name: str, **fields: Any) -> tuple[LanguageModel, Any]:
    module = load_architecture(name)
    config = dataclasses.replace(module.Config.sized(2, V, T), **{**SIZES[name], **fields})
    torch.manual_seed(0)
    model = module.Model(config)
    # Output projections start at zero: without this a model could see nothing but its own position and pass every test.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval(), config


@pytest.fixture(params=sorted(ARCHITECTURES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_parameter_count_is_pinned(name: str) -> None:
    assert sum(p.numel() for p in build_tiny(name)[0].parameters()) == PARAMETERS[name]


def test_logits_cover_every_position(name: str) -> None:
    model, _ = build_tiny(name)
    tokens = torch.randint(0, V, (3, T))
    features = model.features(tokens)
    assert features.shape[:2] == (3, T)
    assert model(tokens).shape == (3, T, V)
    assert torch.equal(model.logits(features), model(tokens))


def test_logits_with_odd_vocabulary_have_its_size(name: str) -> None:
    model, _ = build_tiny(name, vocabulary_size=301)
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 301)


@torch.no_grad()
def test_logits_do_not_depend_on_later_tokens(name: str) -> None:
    model, _ = build_tiny(name)
    tokens = torch.randint(0, V, (1, T))
    answers = model(tokens)
    for cut in (1, T // 2, T - 1):
        changed = tokens.clone()
        changed[:, cut:] = (changed[:, cut:] + 7) % V
        torch.testing.assert_close(model(changed)[:, :cut], answers[:, :cut], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens[:, :cut]), answers[:, :cut], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_logits_depend_on_earlier_tokens(name: str) -> None:
    model, _ = build_tiny(name)
    tokens = torch.randint(0, V, (1, T))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 7) % V
    assert (model(changed) - model(tokens)).abs().amax(-1).min() > 0


@torch.no_grad()
def test_logits_do_not_depend_on_batch_composition(name: str) -> None:
    model, _ = build_tiny(name)
    tokens = torch.randint(0, V, (4, T))
    together = model(tokens)
    alone = torch.cat([model(row[None]) for row in tokens.flip(0)]).flip(0)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_untrained_model_predicts_nearly_uniform(name: str) -> None:
    module = load_architecture(name)
    torch.manual_seed(0)
    model = module.Model(module.Config.sized(2, V, T))
    tokens = torch.randint(0, V, (4, T + 1))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(V), rel=0.06)


def test_recipe_covers_every_parameter_once(name: str) -> None:
    model, config = build_tiny(name)
    taken = optimizers.assign_parameters(model, load_architecture(name).recipe(config))
    names = [parameter for _, mine in taken for parameter in mine]
    assert sorted(names) == sorted(dict(model.named_parameters()))


def test_config_survives_json_round_trip(name: str) -> None:
    config = load_architecture(name).Config.sized(4, V, T)
    assert type(config)(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_load_architecture_unknown_name_lists_known_ones() -> None:
    with pytest.raises(UnknownArchitectureError, match="gpt, nanogpt, litgpt, smear, rwkv5, moe"):
        load_architecture("gtp")


def test_litgpt_config_unknown_name_raises_value_error() -> None:
    litgpt: Any = load_architecture("litgpt")
    with pytest.raises(ValueError, match="no configuration named 'pythia-15m'"):
        litgpt.Config(V, T, "pythia-15m")


@torch.no_grad()
def test_litgpt_logits_equal_litgpt_itself() -> None:
    model, config = build_tiny("litgpt")
    from litgpt import GPT

    reference = GPT(config.to_litgpt()).eval()
    weights = {name.removeprefix("gpt."): value for name, value in model.state_dict().items()}
    weights = {name.replace("head.", "lm_head."): value for name, value in weights.items()}
    reference.load_state_dict(weights)
    tokens = torch.randint(0, V, (2, T))
    torch.testing.assert_close(reference(tokens), model(tokens))
