"""Single options of the baseline against their formulas."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.gpt_models import SIZE, T, V, build_random_model, sample_tokens
from trainer.models import gpt
from trainer.ops.attention import attention
from trainer.ops.dense import build_dense_lambdas, mix_streams
from trainer.ops.paired_heads import pair_documents, pair_heads, unpair_heads
from trainer.swarm.partitions import gpt as partition
from trainer.swarm.partitions.base import PartitionError


def build_config(**fields: object) -> gpt.Config:
    return dataclasses.replace(gpt.Config.sized(2, V, T), **{**SIZE, **fields})  # type: ignore[arg-type]


def test_lambdas_start_on_a_line_from_first_to_last_block() -> None:
    fields = {
        "residual_lambda_first": 1.15,
        "residual_lambda_last": 1.0,
        "x0_lambda_first": 0.2,
        "x0_lambda_last": 0.05,
    }
    blocks = gpt.Model(build_config(**fields)).blocks
    assert [block.residual_lambda.item() for block in blocks] == pytest.approx([1.15, 1.1, 1.05, 1.0])
    assert [block.x0_lambda.item() for block in blocks] == pytest.approx([0.2, 0.15, 0.1, 0.05])
    plain = gpt.Model(build_config(depth=1)).blocks[0]
    assert (plain.residual_lambda.item(), plain.x0_lambda.item()) == pytest.approx((1.0, 0.1))


@torch.no_grad()
def test_value_gate_is_between_0_and_its_range() -> None:
    tokens, x = sample_tokens(), torch.randn(2, T, 32)
    added = []
    for upper in (2.0, 3.0):
        layer = build_random_model(value_gate_range=upper).blocks[1].attention
        layer.value_gate.zero_()
        values = layer.compute_values(x, tokens) - layer.split_heads(layer.value(x))
        added.append(values / layer.split_heads(layer.value_embedding(tokens)))
    assert added[0].mean().item() == pytest.approx(1.0, rel=1e-3)
    assert added[1].mean().item() == pytest.approx(1.5, rel=1e-3)


@torch.no_grad()
def test_larger_rope_base_turns_slower() -> None:
    tokens = sample_tokens()
    slow, fast = (build_random_model(rope_base=base).build_inputs(tokens).cosine[-1, 0] for base in (1e5, 1e4))
    assert torch.equal(slow[:1], fast[:1])
    assert (slow[1:] >= fast[1:]).all()
    assert slow.sum() > fast.sum()


# --- paired heads -----------------------------------------------------------------------------------------------------


def test_paired_heads_alternate_and_come_back() -> None:
    x = torch.randn(2, 5, 6, 3)
    paired = pair_heads(x)
    assert paired.shape == (2, 10, 3, 3)
    assert torch.equal(paired[:, 4, 1], x[:, 2, 2])
    assert torch.equal(paired[:, 5, 1], x[:, 2, 3])
    assert torch.equal(unpair_heads(paired), x)
    documents = pair_documents(torch.tensor([[1, 1, 2]]))
    assert documents is not None
    assert documents.tolist() == [[1, 1, 1, 1, 2, 2]]


def test_paired_head_attends_to_the_keys_of_both() -> None:
    query, key, value = torch.randn(3, 1, 4, 2, 8).unbind()
    paired = (pair_heads(x).transpose(1, 2) for x in (query, key, value))
    found = unpair_heads(attention(*paired).transpose(1, 2))
    # Token 2: the first head sees both heads of tokens 0 and 1 and itself, the second also the second at token 2.
    for head, seen in ((0, 5), (1, 6)):
        keys, values = (x[0].flatten(0, 1)[:seen] for x in (key, value))
        weights = (keys @ query[0, 2, head] / 8**0.5).softmax(0)
        torch.testing.assert_close(found[0, 2, head], weights @ values)


def test_paired_heads_need_an_even_number() -> None:
    with pytest.raises(ValueError, match="even number of heads, not 1"):
        build_config(paired_heads=True, heads=1)


# --- dense connections ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_dense_connections_start_as_none() -> None:
    tokens = sample_tokens()
    torch.manual_seed(0)
    dense = gpt.Model(build_config(dense_every=1))
    plain = gpt.Model(build_config())
    plain.load_state_dict({name: value for name, value in dense.state_dict().items() if name != "dense_lambda"})
    torch.testing.assert_close(dense(tokens), plain(tokens))


@torch.no_grad()
def test_dense_connections_sum_all_earlier_streams() -> None:
    lambdas, streams = build_dense_lambdas(3), torch.randn(3, 2, 5, 4)
    assert torch.equal(mix_streams(list(streams), lambdas[1]), streams[2])
    mixed = mix_streams(list(streams.bfloat16()), torch.tensor([0.5, -1.0, 2.0, 7.0]))
    assert mixed.dtype == torch.bfloat16
    expected = 0.5 * streams[0] - streams[1] + 2 * streams[2]
    torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_dense_connection_of_a_middle_block_reads_the_embedding() -> None:
    model, tokens = build_random_model(dense_every=2, backout=False), sample_tokens()
    before = model.features(tokens)
    model.dense_lambda[0] += 1  # after the first block nothing is mixed
    assert torch.equal(model.features(tokens), before)
    model.dense_lambda[1, 0] += 1
    assert not torch.allclose(model.features(tokens), before)


def test_dense_model_cannot_be_split_into_stages() -> None:
    with pytest.raises(PartitionError, match=r"set model\.dense_every to 0"):
        partition.check(build_random_model(dense_every=1))
