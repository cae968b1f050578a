"""Promises of packing: which segments share a pass, and that sharing changes no number.

1. Chains are exactly the nested prefixes, whatever the order, and nothing is lost.
2. Micro-batches keep chains together and within the bound.
3. Packed, padded, one by one, nested or not: the same log-probs and gradients.
4. In a packed row no sequence sees another, with any attention.
5. Where a model would mix sequences, packing is refused or left out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from trainer.config import ConfigError
from trainer.learning.update import AuxiliaryRow, auxiliary_backward
from trainer.methods.protocol import PassLimits
from trainer.models.lean import lean_of
from trainer.models.packed_attention import PACKED_SDPA, implementation, packs, use_packing
from trainer.models.packing import chains, cut_groups, row_batches, segment_batches
from trainer.models.policy import body_and_head, collate, token_distributions, token_logprobs
from trainer.models.tiny import TinyConfig, build_model, initialise
from trainer.rollouts.data import Segment, make_segment

VOCAB = 23
SHAPE = TinyConfig(
    hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, init_std=0.5
)
tokens = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=24)


# ------------------------------------------------------------------------------------- pure parts


@given(tokens)
def test_chains_are_the_nested_prefixes(ids: list[list[int]]) -> None:
    groups = chains(ids)
    assert sorted(i for group in groups for i in group) == list(range(len(ids)))
    for group in groups:
        longest = ids[group[-1]]
        assert all(longest[: len(ids[i])] == ids[i] for i in group)
        assert [len(ids[i]) for i in group] == sorted(len(ids[i]) for i in group)
    # No pass too many: what leads a group begins no other row.
    leaders = [ids[group[-1]] for group in groups]
    for leader in leaders:
        assert sum(row[: len(leader)] == leader for row in leaders) == 1


@given(tokens, st.randoms(use_true_random=False))
def test_chains_do_not_depend_on_the_order(ids: list[list[int]], random: Any) -> None:
    order = list(range(len(ids)))
    random.shuffle(order)

    def shared(groups: list[list[int]], names: Sequence[int]) -> set[tuple[tuple[int, ...], ...]]:
        return {tuple(sorted(tuple(ids[names[i]]) for i in group)) for group in groups}

    plain, mixed = chains(ids), chains([ids[i] for i in order])
    assert shared(plain, range(len(ids))) == shared(mixed, order)


def test_ids_of_large_vocabularies_are_compared_whole() -> None:
    """256 and 1 share their bytes, not their tokens."""
    assert chains([[256], [1, 0], [256, 1], [151_935]]) == [[0, 2], [1], [3]]


@given(tokens, st.integers(1, 30), st.booleans())
def test_batches_keep_chains_together_within_the_bound(
    ids: list[list[int]], bound: int, packed: bool
) -> None:
    batches = segment_batches(ids, bound, packed=packed)
    assert sorted(i for rows in batches for i in rows) == list(range(len(ids)))
    where = {i: b for b, rows in enumerate(batches) for i in rows}
    for group in chains(ids):
        assert len({where[i] for i in group}) == 1
    for rows in batches:
        run = [len(ids[rows[g[-1]]]) for g in chains([ids[i] for i in rows])]
        assert len(run) == 1 or (sum(run) if packed else len(run) * max(run)) <= bound


def test_packed_batches_are_filled_by_what_they_hold() -> None:
    assert row_batches([9, 1, 1, 1], 12, packed=True) == [[1, 2, 3, 0]]
    assert row_batches([9, 1, 1, 1], 12, packed=False) == [[1, 2, 3], [0]]
    with pytest.raises(ValueError, match="max_tokens is 0"):
        row_batches([1], 0, packed=True)


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 6))
def test_no_group_is_cut_and_parts_are_even(sizes: list[int], parts: int) -> None:
    names = iter(range(sum(sizes)))
    groups = [[next(names) for _ in range(size)] for size in sizes]
    dealt = cut_groups(groups, parts)
    assert len(dealt) == parts
    assert sorted(i for part in dealt for i in part) == list(range(sum(sizes)))
    where = {i: p for p, part in enumerate(dealt) for i in part}
    for group in groups:
        assert len({where[i] for i in group}) == 1
    for part in dealt:
        assert part == sorted(part)
        assert abs(len(part) - sum(sizes) / parts) <= max(sizes, default=0)


# ----------------------------------------------------------------------------------- equal numbers


def policy(attention: str = "sdpa") -> Any:
    model = build_model(VOCAB, SHAPE, seed=3)
    model.set_attn_implementation(attention)
    return model


def other(kind: str) -> Any:
    """Models of other architectures: their head scales, their places are learnt, their layers
    look back three tokens only."""
    with torch.random.fork_rng(devices=[]):
        made: Any
        if kind == "granite":
            made = GraniteForCausalLM(GraniteConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, logits_scaling=4.0,
                pad_token_id=0, bos_token_id=1, eos_token_id=2))  # fmt: skip
        elif kind == "mistral":
            made = MistralForCausalLM(MistralConfig(
                vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, sliding_window=3,
                pad_token_id=0, bos_token_id=1, eos_token_id=2))  # fmt: skip
        else:
            made = GPT2LMHeadModel(GPT2Config(
                vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                pad_token_id=0, bos_token_id=1, eos_token_id=2))  # fmt: skip
    initialise(made, seed=1, std=0.3)
    return made.eval()


def conversation(turns: int, seed: int = 0, temperature: float = 1.0) -> list[Segment]:
    """Each turn's ids begin with all of the turn before; its reply alone is trained."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCAB, (n,), generator=generator).tolist())

    made: list[Segment] = []
    past: tuple[int, ...] = ()
    for turn in range(turns):
        prompt, reply = past + draw(3 + turn), draw(1 + turn % 3)
        made.append(make_segment(prompt, reply, turn=turn, temperature=temperature))
        past = prompt + reply
    return made


def mixture() -> list[Segment]:
    """Two conversations, lone turns of several lengths, one of them twice, a reply that is not
    trained, and one whose two rows want different tokens of the same ids."""
    lone = conversation(1, seed=7, temperature=0.7)[0]
    untrained = make_segment((1, 2, 3), (4, 5), mask=(False, False))
    half = make_segment((9, 8, 7), (6, 5, 4), mask=(True, False, True))
    rest = make_segment((9, 8, 7), (6, 5, 4), mask=(False, True, True), temperature=2.0)
    return [*conversation(4), lone, half, *conversation(3, seed=5, temperature=1.4),
            lone, untrained, rest, make_segment((3,), (2,))]  # fmt: skip


def long_way(model: Any) -> None:
    """A hook that does nothing: such a model has no shorter way of its own."""
    model.model.layers[0].register_forward_hook(lambda *_: None)


def gradients(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weighted(model: Any, segments: Sequence[Segment], **how: Any) -> tuple[list[Tensor], Tensor]:
    """Log-probs of each segment, and the gradient of a sum in which every token has its weight."""
    found = token_logprobs(model, collate(segments, **how), entropy=True)
    assert found.entropy is not None
    rows = [found.logprobs[i, : s.trained] for i, s in enumerate(segments)]
    model.zero_grad()
    weight = torch.linspace(0.5, 1.5, found.logprobs.shape[1])
    ((found.logprobs + 0.3 * found.entropy) * weight).sum().backward()
    return [row.detach() for row in rows], gradients(model)


def alone(model: Any, segments: Sequence[Segment]) -> tuple[list[Tensor], Tensor]:
    """One unpadded pass a segment, gradients added up, the same weights a token."""
    rows, total = [], None
    for segment in segments:
        if segment.trained == 0:
            rows.append(torch.empty(0))
            continue
        wide = max(s.trained for s in segments)
        found = token_logprobs(model, collate([segment]), entropy=True)
        assert found.entropy is not None
        weight = torch.linspace(0.5, 1.5, wide)[: segment.trained]
        model.zero_grad()
        ((found.logprobs + 0.3 * found.entropy) * weight).sum().backward()
        rows.append(found.logprobs[0].detach())
        total = gradients(model) if total is None else total + gradients(model)
    assert total is not None
    return rows, total


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_o23_nested_and_packed_equal_one_by_one(attention: str, packed: bool) -> None:
    model = policy(attention)
    segments = mixture()
    rows, whole = alone(model, segments)
    if packed:
        assert packs(model)
    mine, gradient = weighted(model, segments, packed=packed)
    for left, right in zip(mine, rows, strict=True):
        assert_close(left, right, atol=1e-5, rtol=0)
    assert_close(gradient, whole, atol=2e-5 * float(whole.abs().max()), rtol=0)
    batch = collate(segments, packed=packed)
    assert len(batch.run_lengths) == 6, "two conversations, the lone ids, the halves, two more"
    assert batch.ids_R_L.shape[0] == (1 if packed else 6)
    assert batch.ids_R_L.numel() == (sum(batch.run_lengths) if packed else 6 * batch.lengths[3])


@pytest.mark.parametrize("kind", ["granite", "gpt2", "mistral"])
def test_o23_other_architectures_pack_too(kind: str) -> None:
    model = other(kind)
    assert use_packing(model, None) == (kind != "mistral"), "its mask would be N x N"
    assert use_packing(model, True)
    assert implementation(model) == ("sdpa" if kind == "mistral" else PACKED_SDPA)
    segments = mixture()
    rows, whole = alone(model, segments)
    mine, gradient = weighted(model, segments, packed=True)
    for left, right in zip(mine, rows, strict=True):
        assert_close(left, right, atol=1e-5, rtol=0)
    assert_close(gradient, whole, atol=2e-5 * float(whole.abs().max()), rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager", PACKED_SDPA])
def test_no_sequence_of_a_packed_row_sees_another(attention: str) -> None:
    """Every other token of the row changes, and so do lengths: not a bit moves, or nearly."""
    model = policy(attention)
    middle = conversation(1, seed=11)[0]
    before, after = conversation(3, seed=1)[-1], conversation(2, seed=2)[-1]
    changed = [
        replace(s, ids=tuple((i + 1) % VOCAB for i in s.ids)) for s in (before, middle, after)
    ]
    changed[1] = middle
    longer = make_segment(before.ids, (1, 2, 3))
    for name in ("before", "after", "both"):
        rows = [before, middle, after]
        if name != "after":
            rows[0] = changed[0]
        if name != "before":
            rows[2] = changed[2]
        one = token_logprobs(model, collate([before, middle, after], packed=True)).logprobs[1]
        two = token_logprobs(model, collate(rows, packed=True)).logprobs[1]
        assert torch.equal(one[: middle.trained], two[: middle.trained]), name
    moved = token_logprobs(model, collate([longer, middle], packed=True)).logprobs[1]
    assert_close(moved[: middle.trained], one[: middle.trained], atol=1e-5, rtol=0)


def test_flash_attention_would_be_told_the_boundaries() -> None:
    """What transformers derives from our position ids for kernels that are not here."""
    from transformers.modeling_flash_attention_utils import (
        _is_packed_sequence,
        prepare_fa_kwargs_from_position_ids,
    )

    batch = collate([*conversation(2), make_segment((3,), (2,))], packed=True)
    assert batch.place_1_L is not None
    assert bool(_is_packed_sequence(batch.place_1_L, 1))
    (bounds, _), (longest, _) = prepare_fa_kwargs_from_position_ids(batch.place_1_L)
    ends = [0, batch.run_lengths[0], sum(batch.run_lengths)]
    assert bounds.tolist() == ends
    assert int(longest) == max(batch.run_lengths)


def test_the_probe_finds_a_model_that_mixes_sequences() -> None:
    """An attention that knows nothing of packing gives every token all of the row before it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("blind", sdpa_attention_forward)
    AttentionMaskInterface.register("blind", lambda *_, **__: None)
    model = policy("blind")
    assert not packs(model)
    assert not use_packing(model, None)
    with pytest.raises(ConfigError, match=r"optim\.packing.*blind attention"):
        use_packing(model, True)
    assert not use_packing(model, False)
    model.set_attn_implementation("eager")
    assert packs(model), "tried anew where the attention is another one"


def test_tiny_models_keep_their_shorter_way_unless_told_otherwise() -> None:
    model = policy()
    assert lean_of(model) is not None
    assert not use_packing(model, None)
    assert implementation(model) == "sdpa"
    assert not use_packing(policy("eager"), None), "its mask would be N x N"
    assert use_packing(model, True)


def test_the_attention_it_switches_to_is_sdpa_elsewhere(tmp_path: Any) -> None:
    """Padded passes and generation give the same bits, and nothing of it reaches a saved model."""
    model, twin = policy(), policy()
    assert packs(twin)
    assert implementation(twin) == PACKED_SDPA
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    for arguments in ({}, {"attention_mask": mask}):
        left, right = (m(input_ids=ids, **arguments).logits for m in (model, twin))
        assert torch.equal(left, right)
    twin.save_pretrained(tmp_path)
    assert PACKED_SDPA not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen2"
    # A copy (a teacher, a critic, the one that acts) packs as well.
    again = copy.deepcopy(twin)
    assert packs(again)


def test_distributions_and_recomputed_layers_are_those_of_lone_rows() -> None:
    model = policy()
    assert packs(model)
    segments = mixture()
    one = token_distributions(model, collate(segments, packed=True))
    two = torch.cat([token_distributions(model, collate([s])) for s in segments if s.trained])
    assert_close(one, two, atol=2e-5, rtol=0)


# ---------------------------------------------------------------------------------- whole updates


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 30, 10**6])
def test_o23_an_auxiliary_pass_is_the_same_however_it_is_run(packed: bool, size: int) -> None:
    segments = [s for s in mixture() if s.trained]
    rows = [AuxiliaryRow(s, 0.1 + 0.05 * i) for i, s in enumerate(segments)]
    model = policy()
    expected = torch.zeros(())
    for row in rows:
        found = token_logprobs(model, collate([row.segment])).logprobs
        expected = expected - row.coefficient * found.sum()
    expected.backward()
    whole = gradients(model)
    model.zero_grad()
    if packed:
        long_way(model)
    assert use_packing(model, None) == packed
    value = auxiliary_backward(model, rows, 1.0, PassLimits(size, 0))
    assert value == pytest.approx(float(expected.detach()), rel=1e-5)
    assert_close(gradients(model), whole, atol=1e-5 * float(whole.abs().max()), rtol=0)


def test_a_conversation_costs_one_pass() -> None:
    """Twenty turns: the tokens that are run are those of the last turn, not the sum of all."""
    turns = conversation(20)
    model = policy("eager")
    lean_of(model)  # one-off probes are not what is counted
    body_and_head(model)
    seen: list[int] = []
    handle = model.model.embed_tokens.register_forward_hook(
        lambda _m, args, _o: seen.append(int(args[0].numel()))
    )
    rows = [AuxiliaryRow(s, 1.0) for s in turns]
    auxiliary_backward(model, rows, 1.0, PassLimits(16, 0))
    handle.remove()
    assert seen == [len(turns[-1].ids)]
