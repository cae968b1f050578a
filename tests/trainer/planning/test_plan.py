"""A plan's arithmetic against numbers worked out by hand, and against a real model and checkpoint.

The reference proportions are those of the published ALFWorld runs with Qwen2.5-1.5B: 128
trajectories of 50 turns, prompts of 700 tokens, replies of 100.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.short_runs import run_config
from trainer.config import Config, load_config
from trainer.loop import train
from trainer.planning.plan import (
    FREE_SHARE,
    GB,
    SHAPES,
    Device,
    Load,
    Plan,
    PlanError,
    load_of,
    make_plan,
    shape_for,
)

QWEN = SHAPES["qwen2.5-1.5b"]
N = 1_543_714_304  # parameters that the model's card states as 1.54B
PUBLISHED = {
    "run.dtype": "bfloat16", "run.iterations": 150, "run.checkpoint_every": 10,
    "env.max_steps": 50, "rollout.tasks": 16, "rollout.rollouts": 8,
    "rollout.max_new_tokens": 512, "prompt.max_prompt_tokens": 2048, "objective.kl_coef": 0.01,
    "optim.old_logprobs": "recompute", "optim.micro_batch_tokens": 32768,
}  # fmt: skip


def config_of(**changes: Any) -> Config:
    return load_config({}, {**PUBLISHED, **{k.replace("__", "."): v for k, v in changes.items()}})


def planned(config: Config, gb: float | None = None, peak: float | None = None) -> Plan:
    device = Device("one", None if gb is None else int(gb * GB), peak)
    return make_plan(config, QWEN, load_of(config, prompt=700, reply=100), device)


def changed(config: Config, options: tuple[str, ...]) -> Config:
    """The config with the options of an advice."""
    return config.replace(**dict(option.removeprefix("--").split(" ") for option in options))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen2.5-1.5b", N), ("qwen2.5-7b", 7_615_616_512), ("smollm2-135m", 134_515_008)],
)
def test_presets_have_the_parameters_that_their_cards_state(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


def test_tokens_at_the_reference_proportions() -> None:
    load = planned(config_of()).load
    assert (load.trajectories, load.turns, load.rows, load.length) == (128, 50, 6400, 800)
    assert (load.tokens, load.trained) == (5_120_000, 640_000)


def test_operations_and_times_at_the_reference_proportions() -> None:
    plan = planned(config_of(), peak=989.4e12)
    # A layer: 1536 x (1536 + 256 + 256 + 1536) for attention, 3 x 1536 x 8960 for the MLP.
    dense = 2 * 28 * (1536 * 3584 + 3 * 1536 * 8960) * 5_120_000
    head = 2 * 1536 * 151_936 * 640_000
    attention = 4 * 1536 * 28 * 6400 * (800 * 801 // 2)
    forward = dense + head + attention
    assert forward == pytest.approx(1.4068e16, rel=1e-4)
    # Old log-probs and the reference's: two passes. Backward: twice the forward.
    assert plan.flops == {"rollout": forward, "scoring": 2 * forward, "update": 3 * forward}
    # 14.2 s a pass at the full rate of an H200; at the assumed shares:
    assert plan.seconds["rollout"] == pytest.approx(14.218 / 0.15, rel=1e-3)
    assert plan.seconds["scoring"] == pytest.approx(2 * 14.218 / 0.45, rel=1e-3)
    assert plan.seconds["update"] == pytest.approx(3 * 14.218 / 0.45, rel=1e-3)
    assert plan.iteration_s == pytest.approx(252.8, rel=1e-3)
    recomputed = planned(config_of(optim__gradient_checkpointing=True), peak=989.4e12)
    assert recomputed.flops == plan.flops, "what is recomputed is no model FLOP"
    assert recomputed.seconds["update"] == pytest.approx(4 * 14.218 / 0.45, rel=1e-3)


def test_bytes_at_the_reference_proportions() -> None:
    plan = planned(config_of())
    assert plan.update["weights"] == plan.rollout["weights"] == 4 * N
    assert plan.update["reference"] == plan.update["sampler's copy"] == 2 * N
    assert plan.update["gradients"] == 4 * N
    assert plan.update["optimiser"] == plan.rollout["optimiser"] == 8 * N
    # A key and a value of 2 heads x 128 in 28 layers, 2 bytes each; 16,384 tokens at a time.
    assert plan.rollout["KV cache"] == 2 * 28 * 256 * 2 * 16_384
    assert plan.update["logits of a piece"] == 20 * 2**26
    assert plan.update["activations of a micro-batch"] == pytest.approx(115e9, rel=0.02)
    assert plan.peak == sum(plan.update.values()) > sum(plan.rollout.values())
    # Float32 weights and two moments, 15 times, and the policy that it began with.
    assert plan.checkpoint == 12 * N
    assert plan.disk == 15 * 12 * N + 4 * N
    with_sero = planned(config_of(auxiliary__sero__weight=0.1))
    assert with_sero.update["gradients"] == 8 * N
    assert any("sero" in note for note in with_sero.notes)


@pytest.mark.parametrize(
    ("changes", "checkpoints"),
    [
        ({"run__checkpoint_every": 0}, 1),
        ({"run__checkpoint_every": 40}, 4),
        ({"run__checkpoint_every": 10, "run__keep": "last"}, 1),
        ({"run__checkpoint_every": 10, "run__keep": "best+last"}, 2),
        # Every evaluated iteration has one.
        ({"run__checkpoint_every": 0, "run__keep": "best+last", "eval__every": 5}, 2),
        ({"run__checkpoint_every": 40, "run__early_stop__patience": 3, "eval__every": 15}, 12),
        ({"run__checkpoint_every": 0, "run__early_stop__patience": 3, "eval__every": 40}, 4),
        ({"run__checkpoint_every": 0, "run__iterations": 0}, 0),
    ],
)
def test_disk_counts_the_checkpoints_that_stay(changes: dict[str, Any], checkpoints: int) -> None:
    plan = planned(config_of(**changes))
    assert plan.disk == checkpoints * plan.checkpoint + 4 * N


def test_what_does_not_fit_names_the_knob_and_fits_when_it_is_turned() -> None:
    config = config_of()
    assert planned(config).fits is None
    assert planned(config, 200).fits is True
    assert planned(config, 200).advice == ()
    plan = planned(config, 141)
    assert plan.fits is False
    (option,) = plan.advice
    name, value = option.split(" ")
    assert name == "--optim.micro_batch_tokens"
    assert 800 < int(value) < 32768
    assert planned(changed(config, plan.advice), 141).fits is True
    more = config.replace(**{"optim.micro_batch_tokens": int(value) + 256})
    assert planned(more, 141).fits is False, "as large as it may be"


@pytest.mark.parametrize("gb", [24, 40, 60])
def test_several_knobs_together_are_enough_and_each_is_needed(gb: int) -> None:
    config = config_of(auxiliary__sero__weight=0.1)
    advice = planned(config, gb).advice
    assert planned(changed(config, advice), gb).fits is True
    for option in advice:
        without = tuple(other for other in advice if other != option)
        assert planned(changed(config, without), gb).fits is False, option


def test_where_nothing_helps_the_size_that_would_is_said() -> None:
    plan = planned(config_of(), 8)
    (sentence,) = plan.advice
    assert "--lora.rank 32" in sentence
    need = int(sentence.split("device of ")[1].split(" ")[0])
    tried = tuple(f"--{part.strip()}" for part in sentence.split(" it takes")[0].split("--")[1:])
    assert planned(changed(config_of(), tried), need + 1).fits is True
    assert planned(changed(config_of(), tried), need - 2).fits is False


def test_sampling_that_does_not_fit_has_a_knob_of_its_own() -> None:
    config = config_of(
        sampler__backend="hf-cb", sampler__cache_tokens=5_000_000, optim__micro_batch_tokens=800,
        rollout__tasks=64, lora__rank=16,
    )  # fmt: skip
    plan = planned(config, 22)
    assert plan.rollout["KV cache"] == 2 * 28 * 256 * 2 * 512 * 800, "all of them at a time"
    assert sum(plan.rollout.values()) > 0.9 * 22 * GB > sum(plan.update.values())
    (option,) = plan.advice
    assert option.startswith("--sampler.cache_tokens ")
    assert planned(changed(config, plan.advice), 22).fits is True


def test_a_tenth_of_the_device_stays_free() -> None:
    need = planned(config_of()).peak / (1 - FREE_SHARE) / GB
    assert planned(config_of(), need + 0.01).fits is True
    assert planned(config_of(), need - 0.01).fits is False


def test_a_critic_a_reference_and_adapters_are_counted() -> None:
    plain = planned(config_of(objective__kl_coef=0.0))
    assert plain.update["reference"] == 0
    assert plain.flops["scoring"] == plain.flops["rollout"], "the old log-probs alone"
    critic = planned(config_of(objective__name="ppo"))
    assert critic.update["critic"] == 12 * N
    assert critic.checkpoint == 24 * N
    assert critic.flops["update"] > 1.9 * planned(config_of()).flops["update"]
    adapters = planned(config_of(lora__rank=16))
    few = QWEN.adapters(16)
    assert adapters.update["gradients"] == 4 * few
    assert adapters.update["reference"] == 0
    assert adapters.checkpoint == 4 * N + 4 * few + 8 * few


def test_the_servers_memory_is_its_own(tmp_path: Path) -> None:
    plan = planned(config_of(sampler__backend="vllm", sampler__weights_dir=str(tmp_path)))
    assert plan.rollout["KV cache"] == 0
    assert any("vLLM" in note for note in plan.notes)


def test_a_run_in_several_processes_is_planned_as_one_and_says_so() -> None:
    assert not any("parallel" in note for note in planned(config_of()).notes)
    notes = planned(config_of(parallel__mode="fsdp")).notes
    assert any("parallel.mode=fsdp" in note for note in notes)


def test_upper_bounds_come_from_the_config() -> None:
    load = load_of(config_of())
    assert load == Load(128, 50, 2048, 512, 6400, 2560)
    assert load_of(config_of(), turns=20).rows == 128 * 20
    for name, value in (("turns", 51), ("prompt", 2049), ("reply", 513), ("reply", 0)):
        with pytest.raises(PlanError, match="must lie in 1 to"):
            load_of(config_of(), **{name: value})


def test_a_conversation_is_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.planning.load.in_chat", lambda config: True)
    config = config_of(prompt__max_prompt_tokens=20_000)
    load = load_of(config, prompt=150, reply=100)
    assert (load.rows, load.length, load.trained) == (128, 50 * 250, 128 * 50 * 100)
    longest = load_of(config_of(), prompt=150, reply=100)
    assert (longest.length, longest.trained) == (2148, 128 * 2148), "where its prompt ends"
    assert load_of(config, reply=100).length == 20_100


def test_the_sizes_of_a_tiny_policy_are_its_own_and_so_is_its_checkpoint(tmp_path: Path) -> None:
    # The entropy term moves the policy, whatever it was paid: moments are written.
    config = run_config(tmp_path, run__iterations=1, objective__entropy_coef=0.01)
    shape = shape_for(config)
    real = small.model()
    assert shape.parameters == sum(p.numel() for p in real.parameters())
    train(config, tmp_path / "run")
    plan = make_plan(config, shape, load_of(config))
    folder = tmp_path / "run/checkpoints/000001"
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    # Names, shapes and step counts are in the files too: at most 200 bytes a tensor and file.
    tensors = 4 * len(list(real.parameters()))
    assert plan.checkpoint <= written <= plan.checkpoint + 200 * tensors
    assert written == pytest.approx(plan.checkpoint, rel=0.15)
    assert plan.fits is None


def test_the_configs_own_model_is_bounded_by_its_vocabulary(tmp_path: Path) -> None:
    config = small.small_config()
    bound, real = shape_for(config), shape_for(run_config(tmp_path))
    assert bound.parameters >= real.parameters
    assert replace(bound, vocab=real.vocab) == real


MIXTRAL = (
    '{"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "hidden_act": "silu", '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, '
    '"vocab_size": 32000, "num_local_experts": 8}'
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "holds no mapping"),
        ('{"model_type": "gpt2"}', "expected fields num_hidden_layers"),
        (MIXTRAL, "model type 'mixtral' is not known: expected one gated MLP"),
    ],
)
def test_a_folder_without_a_readable_model_is_refused(
    tmp_path: Path, text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    config = config_of(model__path=str(tmp_path))
    with pytest.raises(ValueError, match=told):
        shape_for(config)
    assert shape_for(config, "qwen2.5-7b") is SHAPES["qwen2.5-7b"]
    with pytest.raises(PlanError, match="must be one of"):
        shape_for(config, "gpt")


def test_a_folders_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 1536,
                "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
            }
        )
    )  # fmt: skip
    assert shape_for(config_of(model__path=str(tmp_path))) == QWEN


def test_a_batch_that_holds_few_of_the_trajectories_is_told() -> None:
    # 16384 tokens are 20 sequences of 800.
    notes = planned(config_of()).notes
    assert any(note.startswith("20 of 128 trajectories are sampled at a time") for note in notes)
    whole = planned(config_of(sampler__max_batch_tokens=128 * 800)).notes
    assert not any("at a time" in note for note in whole)
