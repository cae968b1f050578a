"""Recipes: their values are the published ones, and what cannot work is refused with its numbers.

The table below was typed from the sources that the recipes cite, not from the recipes.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, full_count
from tests.trainer import small
from tests.trainer.supervised.test_demonstrations import chat_tokenizer
from trainer.config import Config, ConfigError, from_dict, load_config, resolve
from trainer.models.tiny import ModelFolderError, save_policy
from trainer.runs.folder import make_student
from trainer.runs.preflight import check_prompts
from trainer.worlds.tasks import make_env, open_tasks

RECIPES = ROOT / "examples" / "recipes"
BASES = ("grpo", "gigpo", "hgpo", "graphgpo")
ENVS = ("alfworld", "webshop")
SIZES = ("1.5b", "7b")
PUBLISHED = [
    f"{env}_{size}_{base}{sero}.yaml"
    for env, size, base, sero in itertools.product(ENVS, SIZES, BASES, ("", "_sero"))
]

COMMON: dict[str, Any] = {
    "run.seed": 0,
    "prompt.template": "field",
    "prompt.history_length": 2,
    "rollout.tasks": 16,
    "rollout.rollouts": 8,
    "rollout.temperature": 1.0,
    "rollout.max_new_tokens": 512,
    "rollout.reward": "success",
    "rollout.success_reward": 10.0,
    "rollout.format_penalty": 0.1,
    "objective.flavor": "code",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.2,
    "objective.dual_clip": 3.0,
    "objective.aggregation": "token-mean",
    "objective.kl_coef": 0.01,
    "objective.kl_kind": "k3",
    "objective.kl_placement": "loss",
    "objective.entropy_coef": 0.001,
    "optim.optimizer": "adamw",
    "optim.lr": 1e-6,
    "optim.warmup_steps": 0,
    "optim.decay_steps": None,
    "optim.weight_decay": 0.01,
    "optim.grad_clip": 1.0,
    "optim.epochs": 1,
    "optim.old_logprobs": "recompute",
    "eval.every": 5,
    "eval.initial": True,
    "eval.temperature": 0.4,
    "lora.rank": 0,
    "run.device": "cuda",
    "run.dtype": "bfloat16",
}
#                      iterations  steps   prompt  std    mini-batches
BY_BASE: dict[tuple[str, str], tuple[int, int, int, bool, int]] = {
    ("grpo", "alfworld"): (150, 50, 2048, True, 10),
    ("grpo", "webshop"): (150, 15, 4096, True, 14),
    ("gigpo", "alfworld"): (150, 50, 2048, True, 10),
    ("gigpo", "webshop"): (150, 15, 4096, False, 14),
    ("hgpo", "alfworld"): (160, 50, 4096, True, 10),
    ("hgpo", "webshop"): (160, 30, 4096, False, 14),
    ("graphgpo", "alfworld"): (150, 50, 2048, True, 10),
    ("graphgpo", "webshop"): (150, 15, 5120, True, 14),
}
OWN: dict[str, dict[str, Any]] = {
    "gigpo": {"objective.anchors.gamma": 0.95, "objective.anchors.weight": 1.0},
    "hgpo": {
        "objective.anchors.gamma": 0.95,
        "objective.anchors.depth": 2,
        "objective.anchors.alpha": 1.0,
        "objective.anchors.base_group": False,
    },
    "graphgpo": {"objective.graph.step_weight": 1.0, "objective.graph.episode_weight": 1.0},
    "grpo": {},
}


def _value(config: Config, dotted: str) -> Any:
    found: Any = config
    for name in dotted.split("."):
        found = getattr(found, name)
    return found


def _files() -> list[str]:
    return sorted(path.name for path in RECIPES.glob("*.yaml"))


def test_every_recipe_is_there_and_nothing_else() -> None:
    assert _files() == sorted([*PUBLISHED, "smollm2_135m_cpu.yaml"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_values_are_the_published_ones(name: str) -> None:
    config = load_config(RECIPES / name)
    env, size, base, *sero = name.removesuffix(".yaml").split("_")
    wanted = COMMON | OWN[base]
    iterations, steps, prompt, std, batches = BY_BASE[base, env]
    if (base, env, size) == ("graphgpo", "alfworld", "7b"):
        batches = 40  # 64 turns in place of 256
    wanted |= {
        "run.iterations": iterations,
        "env.id": {"alfworld": "SeroALFWorld-v0", "webshop": "SeroWebShop-v0"}[env],
        "env.max_steps": steps,
        "prompt.max_prompt_tokens": prompt,
        "objective.name": base,
        "objective.use_std": std,
        "optim.steps": batches,
        "model.path": f"models/Qwen2.5-{size.upper()}-Instruct",
    }
    if base == "graphgpo":
        wanted["objective.graph.omega"] = {"alfworld": 0.1, "webshop": 0.2}[env]
    if env == "webshop":
        mode = "text_rich" if base == "graphgpo" else "text"
        wanted |= {"env.webshop.observation_mode": mode, "env.webshop.goal_source": "synthetic"}
    assert {key: _value(config, key) for key in wanted} == wanted
    active = dict(config.auxiliary.active())
    assert list(active) == sero
    if sero:
        assert active["sero"].weight == 0.1


@pytest.mark.parametrize("name", _files())
def test_a_recipe_is_recorded_whole(name: str) -> None:
    config = load_config(RECIPES / name)
    recorded = json.loads(json.dumps(resolve(config)))
    assert "extends" not in recorded
    assert from_dict(recorded) == config


@pytest.mark.parametrize("name", _files())
def test_a_recipe_samples_from_a_server_as_well(name: str) -> None:
    server = {
        "sampler.backend": "vllm",
        "sampler.weights_dir": "/srv/weights",
        "optim.old_logprobs": "recompute",
    }
    assert load_config(RECIPES / name, server).sampler.backend == "vllm"


@pytest.mark.parametrize("name", _files())
def test_a_recipe_says_how_to_run_it(name: str) -> None:
    text = (RECIPES / name).read_text(encoding="utf-8")
    assert f"sero train examples/recipes/{name}" in text


@pytest.mark.parametrize("path", sorted((RECIPES / "parts").glob("*.yaml")), ids=lambda p: p.name)
def test_every_value_of_a_part_says_where_it_comes_from(path: Path) -> None:
    """In a comment on its line, or before the key in the lines of its part's head."""
    if path.stem in ("1.5b", "7b", "grpo"):
        return  # machine settings, and one line
    sourced = re.compile(r"#.*(scripts|public code|published|ours|code's default)", re.IGNORECASE)
    text = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(text):
        key = re.match(r"\s+(\w+): \S", line)
        if key is None or key[1] in ("id", "data", "template"):
            continue
        around = [line, *itertools.takewhile(_is_comment, reversed(text[:number]))]
        above = any(_is_comment(one) for one in text[:number]) and key[1] in _TOLD_ABOVE
        assert above or any(sourced.search(one) for one in around), line


_TOLD_ABOVE = ("steps", "webshop", "splits", "tasks", "name", "return_scale")


def _is_comment(line: str) -> bool:
    return line.strip().startswith("#")


# ------------------------------------------------------------------------------ extends


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_later_files_win_and_the_file_itself_over_all(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _write(tmp_path / "parts", a="run: {seed: 1, iterations: 5}\noptim: {lr: 1.0}\n")
    _write(tmp_path / "parts", b="extends: a.yaml\nrun: {seed: 2, threads: 3}\n")
    _write(tmp_path / "parts", c="run: {threads: 4}\nauxiliary: {sero: {weight: 0.3}}\n")
    _write(tmp_path, d="extends: [parts/b.yaml, parts/c.yaml]\noptim: {lr: 0.5}\n")
    config = load_config(tmp_path / "d.yaml")
    assert (config.run.seed, config.run.iterations, config.run.threads) == (2, 5, 4)
    assert (config.optim.lr, config.auxiliary.sero is not None) == (0.5, True)
    _write(tmp_path, e="extends: d.yaml\nauxiliary: {sero: null}\n")
    config = load_config(tmp_path / "e.yaml", {"run.seed": 9})
    assert (config.auxiliary.sero, config.run.seed) == (None, 9)


def test_a_part_twice_is_no_circle(tmp_path: Path) -> None:
    _write(tmp_path, base="run: {seed: 3}\n", left="extends: base.yaml\n")
    _write(tmp_path, both="extends: [left.yaml, base.yaml]\n")
    assert load_config(tmp_path / "both.yaml").run.seed == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: x.yaml\n", r"in a circle: .*x\.yaml -> .*x\.yaml"),
        ("extends: [y.yaml]\n", r"in a circle: .*x\.yaml -> .*y\.yaml -> .*x\.yaml"),
        ("extends: absent.yaml\n", r"x\.yaml extends 'absent\.yaml', and there is no file"),
        ("extends: 3\n", r"extends=3 must be a path"),
        ("extends: [3]\n", r"extends=\[3\] must be a path"),
        ("extends: {a: b}\n", r"must be a path"),
        ("extends: list.yaml\n", r"list\.yaml must hold a mapping"),
        ("extends: typo.yaml\n", r"Unknown key 'run\.sed'\. Did you mean 'run\.seed'"),
    ],
)
def test_extensions_that_lead_nowhere_are_refused(tmp_path: Path, text: str, message: str) -> None:
    _write(tmp_path, x=text, y="extends: x.yaml\n", list="- 1\n", typo="run: {sed: 1}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "x.yaml")


def test_extends_is_no_key_of_a_config_itself() -> None:
    with pytest.raises(ConfigError, match="Unknown key 'extends'"):
        load_config({"extends": "x.yaml"})
    with pytest.raises(ConfigError, match="Unknown key 'extends'"):
        load_config({}, {"extends": "x.yaml"})


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("base", BASES)
def test_groups_of_one_are_refused(base: str) -> None:
    with pytest.raises(ConfigError, match=rf"rollout\.rollouts=1 gives objective\.name={base}"):
        load_config(RECIPES / f"alfworld_1.5b_{base}.yaml", {"rollout.rollouts": 1})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env.max_steps", 0, r"env\.max_steps=0 must be positive"),
        ("objective.gama", 1, r"Unknown key 'objective\.gama'"),
        ("optim.old_logprobs", "sampler", r"run\.dtype=bfloat16 needs optim\.old_logprobs"),
        ("objective.overlong_buffer", 600, r"overlong_buffer=600 .*max_new_tokens=512"),
        ("objective.kl_kind", "k1", r"kl_kind=k1 with kl_placement=loss"),
        ("env.webshop.price_seed", 3, r"env\.webshop is set, but SeroALFWorld-v0"),
    ],
)
def test_settings_that_clash_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(RECIPES / "alfworld_1.5b_gigpo.yaml", {key: value})


def test_a_prompt_limit_that_holds_no_prompt_is_refused_with_both_numbers() -> None:
    config = small.small_config(prompt__template="field", prompt__max_prompt_tokens=64)
    env = make_env(config.env, small.games(), "train")
    student = make_student(config, None, chat_tokenizer())
    task = small.games().task_ids("train")[0]
    message = r"prompt\.max_prompt_tokens=64 does not hold .*: (\d+) tokens with .*=field"
    with pytest.raises(ConfigError, match=message) as caught:
        check_prompts(config, student, small.model(), env, task)
    found = re.search(message, str(caught.value))
    assert found is not None
    enough = config.replace(**{"prompt.max_prompt_tokens": int(found[1])})
    fits = make_student(enough, None, chat_tokenizer())
    check_prompts(enough, fits, small.model(), env, task)
    less = config.replace(**{"prompt.max_prompt_tokens": int(found[1]) - 1})
    with pytest.raises(ConfigError, match="does not hold"):
        check_prompts(less, make_student(less, None, chat_tokenizer()), small.model(), env, task)


def test_a_template_that_opens_the_thought_itself_is_refused() -> None:
    config = small.small_config(prompt__template="field", prompt__max_prompt_tokens=1000)
    env = make_env(config.env, small.games(), "train")
    task = small.games().task_ids("train")[0]
    tokenizer = chat_tokenizer()
    check_prompts(config, make_student(config, None, tokenizer), small.model(), env, task)
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    with pytest.raises(ConfigError, match=r"ends every prompt with <think>.*=field"):
        check_prompts(config, make_student(config, None, tokenizer), small.model(), env, task)
    react = config.replace(**{"prompt.template": "react"})
    check_prompts(react, make_student(react, None, tokenizer), small.model(), env, task)


def test_a_prompt_limit_beyond_the_models_places_is_refused() -> None:
    config = small.small_config(prompt__max_prompt_tokens=1001, rollout__max_new_tokens=24)
    env = make_env(config.env, small.games(), "train")
    student = small.student(config)
    task = small.games().task_ids("train")[0]
    with pytest.raises(ConfigError, match=r"1001 and .*=24 make 1025 .* 1024 \(max_position"):
        check_prompts(config, student, small.model(), env, task)
    config = config.replace(**{"prompt.max_prompt_tokens": 1000})
    check_prompts(config, small.student(config), small.model(), env, task)


def test_a_prompt_limit_beyond_the_short_rows_of_a_longrope_is_refused() -> None:
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM

    shape = Phi3Config(
        vocab_size=len(small.tokenizer()), hidden_size=32, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, pad_token_id=0,
        max_position_embeddings=4096, original_max_position_embeddings=1024,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    )  # fmt: skip
    model = Phi3ForCausalLM(shape).eval()
    ids = torch.arange(1024)[None] % 100
    with torch.no_grad():
        alone = model(ids).logits[0, :1000]
        longer = model(torch.cat([ids, ids], dim=1)).logits[0, :1000]
    assert not torch.allclose(alone, longer, atol=1e-4), "a later token changes earlier ones"
    config = small.small_config(prompt__max_prompt_tokens=1001, rollout__max_new_tokens=24)
    env = make_env(config.env, small.games(), "train")
    task = small.games().task_ids("train")[0]
    with pytest.raises(ConfigError, match=r"make 1025 tokens, and beyond 1024 .* longrope"):
        check_prompts(config, small.student(config), model, env, task)
    config = config.replace(**{"prompt.max_prompt_tokens": 1000})
    check_prompts(config, small.student(config), model, env, task)


def test_o34_missing_data_names_the_path_and_what_to_do(tmp_path: Path) -> None:
    shop = load_config(RECIPES / "webshop_1.5b_grpo.yaml", {"env.data": str(tmp_path / "no")})
    with pytest.raises(FileNotFoundError) as caught:
        open_tasks(shop.env)
    assert all(
        word in str(caught.value)
        for word in (str(tmp_path / "no"), "SERO_WEBSHOP_DATA", "sero data import webshop")
    )
    games = load_config(RECIPES / "alfworld_1.5b_grpo.yaml", {"env.data": str(tmp_path / "no")})
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "no"))):
        open_tasks(games.env)


def test_o34_a_variable_that_names_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_ALFWORLD_DATA", str(tmp_path / "no"))
    config = load_config(RECIPES / "alfworld_1.5b_grpo.yaml", {"env.data": None})
    with pytest.raises(FileNotFoundError) as caught:
        open_tasks(config.env)
    words = (str(tmp_path / "no"), "$SERO_ALFWORLD_DATA", "sero data fetch alfworld")
    assert all(word in str(caught.value) for word in words)


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    from trainer.loop import train

    config = load_config(
        RECIPES / "alfworld_1.5b_grpo_sero.yaml",
        {"env.data": "generated", "run.device": "cpu", "model.path": str(tmp_path / "absent")},
    )
    with pytest.raises(ModelFolderError, match=r"absent holds no policy: config\.json is missing"):
        train(config, tmp_path / "run")


# ------------------------------------------------------------------------------ they run

_ALL = tuple(itertools.product(ENVS, BASES))
_TRAINED = _ALL if full_count(0, 1) else (("alfworld", "gigpo"), ("webshop", "graphgpo"))


@pytest.mark.parametrize(("env", "base"), _TRAINED)
def test_a_recipe_trains_at_tiny_size(env: str, base: str, tmp_path: Path) -> None:
    from trainer.loop import train

    policy = tmp_path / "policy"
    model = small.model()
    model.config.max_position_embeddings = 4096  # rotary: no weight depends on it
    save_policy(policy, model, chat_tokenizer())
    config = load_config(
        RECIPES / f"{env}_1.5b_{base}_sero.yaml",
        {
            "run.device": "cpu",
            "run.iterations": 1,
            "env.data": "generated",
            "env.max_steps": 3,
            "prompt.max_prompt_tokens": 3000,
            "rollout.tasks": 1,
            "rollout.rollouts": 2,
            "rollout.max_new_tokens": 12,
            "optim.steps": 2,
            "eval.tasks": 1,
            "eval.initial": False,
            "model.path": str(policy),
        },
    )
    result = train(config, tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["config"]
    assert result.iterations == 1
    assert recorded == json.loads(json.dumps(resolve(config)))
