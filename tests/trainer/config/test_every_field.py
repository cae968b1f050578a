"""Every field of a config does something whatever else is set, or is refused where it does not."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from trainer.config import Config
from trainer.config.dead_switches import SWITCHES

ALWAYS = {
    "run": "seed iterations device dtype threads checkpoint_every keep nonfinite_limit save_turns",
    "run.early_stop": "patience",
    "env": "id data split max_steps pool",
    "prompt": "template context max_prompt_tokens",
    "model": "path",
    "rollout": "tasks rollouts temperature max_new_tokens",
    "sampler": "backend",
    "objective": "name kl_coef entropy_coef mask_truncated",
    "optim": "optimizer lr warmup_steps decay_steps weight_decay grad_clip steps epochs "
    "micro_batch_tokens packing gradient_checkpointing old_logprobs",
    "lora": "rank",
    "eval": "splits",
    "log": "to",
    "parallel": "mode",
    "auxiliary": "measure_gradients",
    "auxiliary.sero": "weight rule normaliser branch_norm w_min pool scheme target return_scale "
    "think_mode loss_tokens z_tokens token_weights oracle oracle_budget_s overlap workers "
    "max_depth depth_iterations",
    "auxiliary.serl": "weight alpha decay sync_every max_prompt_tokens source placement act_weight",
    "auxiliary.rlsd": "weight alpha decay max_prompt_tokens context teacher rollout_filter",
    "auxiliary.seed": "weight beta gate_center teacher tokens skill_mode start_after stop_after "
    "failed_only shuffle",
    "auxiliary.seed.analyser": "model attempts text_limit",
    "auxiliary.sdar": "weight beta gate gate_center teacher skills retrieval allow_missing",
    **{f"auxiliary.{name}.entries": "name text keywords" for name in ("sdar", "skill_sd")},
    "auxiliary.skill_sd": "weight source teacher",
    "auxiliary.skill_sd.analyser": "model attempts text_limit",
    "auxiliary.opid": "weight skill_mode shuffle",
    "auxiliary.opid.analyser": "model attempts text_limit",
    "auxiliary.opd": "weight teacher form",
    "auxiliary.opd.depth": "growth final direction",
    "auxiliary.gkd": "weight teacher fraction beta top_k",
    "auxiliary.opsd": "weight context teacher divergence top_k max_prompt_tokens",
    "auxiliary.opsd_legacy": "weight beta context max_prompt_tokens",
    "auxiliary.sdpo": "weight alpha top_k is_clip teacher success_threshold feedback "
    "max_prompt_tokens rendering context_steps",
    "auxiliary.dagger": "weight states max_states depth_iterations oracle oracle_budget_s",
    "auxiliary.corrections": "weight pool max_depth oracle oracle_budget_s",
    "auxiliary.sft": "weight oracle oracle_budget_s",
    "auxiliary.expert_iteration": "weight well_formed",
    "auxiliary.step_dpo": "weight beta states tokens reference oracle oracle_budget_s",
    "auxiliary.chord": "weight mu_peak mu_valley mu_warmup mu_decay token_weights oracle "
    "oracle_budget_s",
    "auxiliary.luffy": "weight gamma oracle oracle_budget_s",
    "auxiliary.format_only": "weight",
}
"""Fields that are read whatever the others say, as long as their section is there."""

CHECKED = {
    "env": "task_types workers",  # worlds.environments.check_environment, EnvConfig.check
    "env.webshop": "goal_source split_by observation_mode show_attributes price_seed",  # likewise
    "rollout": "top_p",  # must be 1
    "sampler": "join_share timeout_s url served_model weights_dir concurrency",
    "lora": "dropout",  # must be 0
    "eval": "best_by",  # config.stopping.check_stopping
    "log": "project run_name dir every",
    "parallel": "timeout_s",
    "objective": "drop_constant_groups dynamic_rounds",
    "warmstart": "given_model",  # Config.check
    "auxiliary.sero": "gamma",
    "auxiliary.serl": "judge",
    "auxiliary.opd": "baseline",
    "auxiliary.skill_sd": "skills",  # and entries
}
"""Fields that a check of their own refuses where they do nothing."""

REASONS = {
    "eval.initial": "eval.splits: [] is how a config switches evaluation off",
    "eval.tasks": "likewise",
    "sampler.max_batch_tokens": "recipes set it, whatever samples in the end",
    **{
        f"model.{name}": "config.dead_switches.unread_as_written refuses what was written beside "
        "model.path; else it is how a policy was made, and its config goes on"
        for name in (
            "hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "vocab_size",
            "seed", "tokenizer_games",
        )
    },
    **{
        f"warmstart.{name}": "likewise; and demonstrations: 0 is how a config switches it off"
        for name in (
            "demonstrations", "oracle", "loss_tokens", "text_steps", "steps", "batch", "lr",
            "warmup_steps", "random_share", "inadmissible_share", "seed",
        )
    },
}  # fmt: skip
"""Fields that may stand there without effect, and why."""


def _sections(cls: type[Any], path: str = "") -> Iterator[tuple[str, type[Any]]]:
    """Every section by its dotted name, those that a config may lack included."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        inner = [
            hint
            for hint in (hints[field.name], *typing.get_args(hints[field.name]))
            if isinstance(hint, type) and dataclasses.is_dataclass(hint)
        ]
        if inner:
            name = f"{path}.{field.name}" if path else field.name
            yield name, inner[0]
            yield from _sections(inner[0], name)


def _fields() -> set[str]:
    """Dotted names of all fields that are no sections."""
    sections = dict(_sections(Config))
    return {
        f"{name}.{field.name}"
        for name, cls in sections.items()
        for field in dataclasses.fields(cls)
        if f"{name}.{field.name}" not in sections
    }


def _named(table: dict[str, str]) -> set[str]:
    return {f"{section}.{name}" for section, names in table.items() for name in names.split()}


def test_every_field_is_read_refused_or_excused() -> None:
    switched = {f"{switch.section}.{field}" for switch in SWITCHES for field in switch.fields}
    known = switched | _named(ALWAYS) | _named(CHECKED) | REASONS.keys()
    fields = _fields()
    assert sorted(fields - known) == [], "neither a rule nor a reason"
    sections = {name for name, _ in _sections(Config)}
    assert sorted(known - fields - sections) == [], "no such field"


def test_a_field_is_in_one_table() -> None:
    # Those of the base objective's loss are read whenever there is one, which a rule asks for.
    both = {"objective.kl_coef", "objective.entropy_coef"}
    switched = {f"{switch.section}.{field}" for switch in SWITCHES for field in switch.fields}
    tables = [switched - both, _named(ALWAYS), _named(CHECKED), set(REASONS)]
    for number, table in enumerate(tables):
        for other in tables[number + 1 :]:
            assert table & other == set()


def test_a_rule_names_fields_that_there_are() -> None:
    fields, sections = _fields(), dict(_sections(Config))
    for switch in SWITCHES:
        names = [f"{switch.section}.{field}" for field in switch.fields]
        assert [n for n in names if n not in fields and n not in sections] == []
        deciding = [switch.decides] if switch.only is None else [switch.decides, switch.only[0]]
        assert [name for name in deciding if name not in fields and name not in sections] == []
