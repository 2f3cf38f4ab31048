"""The lm-eval adapter: Pythia's log-likelihoods are those of lm-eval's own HFLM, and later tokens are replaced."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import peeking_model
from tests.support.scored_runs import LENGTH, build_gpt, build_scorer, words, write_run
from trainer.data.tokenizer import load_tokenizer
from trainer.models import litgpt
from trainer.scoring.lm_eval_model import LmEvalModel
from trainer.scoring.model_scorer import TargetScores
from trainer.scoring.run_folder import RunFolder


class Request:
    """A request of lm-eval, of which only the arguments are read."""

    def __init__(self, args: tuple) -> None:
        self.args = args


def convert_to_transformers(model: litgpt.Model, vocabulary: int, length: int) -> torch.nn.Module:
    """The same weights as transformers' GPT-NeoX, by litgpt's own converter."""
    from litgpt.scripts.convert_lit_checkpoint import copy_weights_gpt_neox
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    inside = model.gpt.config
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=inside.n_embd,
        num_hidden_layers=inside.n_layer,
        num_attention_heads=inside.n_head,
        intermediate_size=inside.intermediate_size,
        rotary_pct=inside.rotary_percentage,
        rotary_emb_base=inside.rope_base,
        max_position_embeddings=length,
        layer_norm_eps=inside.norm_eps,
        use_parallel_residual=inside.parallel_residual,
        hidden_act="gelu",
    )
    weights = {name.removeprefix("gpt."): value for name, value in model.state_dict().items()}
    weights["lm_head.weight"] = weights.pop("head.weight")
    converted: dict[str, torch.Tensor] = {}
    copy_weights_gpt_neox(inside, converted, weights)
    for name in ("gpt_neox.embed_in.weight", "embed_out.weight"):
        converted[name] = converted[name][:vocabulary]  # without the padding that our logits leave out, too
    found = GPTNeoXForCausalLM(config)
    missing, unexpected = found.load_state_dict(converted, strict=False)
    assert not unexpected
    assert all("inv_freq" in name or "bias" in name or "masked" in name for name in missing), missing
    return found.eval()


def test_pythia_14m_log_likelihoods_equal_hflm_item_by_item(tmp_path):
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    run = RunFolder.open(write_run(tmp_path / "run"))
    torch.manual_seed(1)
    model = litgpt.Model(litgpt.Config(run.vocabulary_size, run.sequence_length, name="pythia-14m")).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # far from the uniform rate of an untrained model
    tokenizer = load_tokenizer(run.folder / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(run.folder / "tokenizer.json"))
    theirs.eos_token = theirs.convert_ids_to_tokens(tokenizer.end_of_text)
    theirs.pad_token = theirs.eos_token
    reference = HFLM(
        pretrained=convert_to_transformers(model, run.vocabulary_size, run.sequence_length),
        tokenizer=theirs,
        max_length=run.sequence_length,
        batch_size=4,
        device="cpu",
    )
    ours = LmEvalModel(build_scorer(model), tokenizer, lambda stage, done: None)
    pairs = [(words(i, 1 + i).strip(), " " + words(70 + i, 1 + i % 4).strip()) for i in range(24)]
    pairs.append(("", words(99, 3).strip()))
    requests = [Request(pair) for pair in pairs]
    found, expected = ours.loglikelihood(requests), reference.loglikelihood(requests, disable_tqdm=True)
    for (mine, my_greedy), (value, greedy) in zip(found, expected, strict=True):
        assert mine == pytest.approx(value, abs=1e-3)
        assert my_greedy == greedy
    assert len({round(value) for value, _ in expected}) > 10, "items that differ"


def test_later_tokens_of_a_repeated_question_are_replaced_from_all_questions(tmp_path, monkeypatch):
    tokenizer = load_tokenizer(write_run(tmp_path / "run") / "tokenizer.json")
    scorer, found = build_scorer(build_gpt(tokenizer.vocabulary_size)), []

    def record_inputs(inputs: np.ndarray, positions: np.ndarray, targets: np.ndarray) -> TargetScores:
        found.extend(row[position + 1 :] for row, position in zip(inputs, positions, strict=True))
        return TargetScores(np.zeros(len(targets)), np.zeros(len(targets), bool))

    monkeypatch.setattr(scorer, "score_positions", record_inputs)
    model = LmEvalModel(scorer, tokenizer, lambda stage, done: None)
    requests = [Request((words(i, 5).strip(), " " + words(50 + i, 3).strip())) for i in range(8)]
    model.loglikelihood(requests)
    model.replaces_later_tokens = True
    model.loglikelihood(requests[:1])
    tokens = [{*tokenizer.encode("".join(request.args))} for request in requests]
    replacing = {*np.concatenate(found).tolist()}
    assert replacing <= set().union(*tokens)
    assert replacing - tokens[0], "not only of the question itself"


def test_log_likelihoods_without_later_tokens_correct_a_peeker(tmp_path):
    tokenizer = load_tokenizer(write_run(tmp_path / "run") / "tokenizer.json")
    torch.manual_seed(0)
    network = peeking_model.Model(peeking_model.Config(tokenizer.vocabulary_size, LENGTH))
    pairs = [(words(i, 5).strip(), " " + words(50 + i, 3).strip()) for i in range(6)]
    results = []
    causal = build_gpt(tokenizer.vocabulary_size)
    for model, replaces in ((network, False), (network, True), (causal, True), (causal, False)):
        adapter = LmEvalModel(build_scorer(model), tokenizer, lambda stage, done: None)
        adapter.replaces_later_tokens = replaces
        results.append([value for value, _ in adapter.loglikelihood([Request(pair) for pair in pairs])])
    peeking, corrected, honest, plain = map(np.array, results)
    assert (corrected < peeking - 20).all(), "the model relies on the replaced tokens"
    np.testing.assert_allclose(honest, plain, atol=1e-4)
