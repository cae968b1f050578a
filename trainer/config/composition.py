"""Which objectives go together in a run, and why some do not.

Everything that is not named here composes. In particular SERL, RLSD and OPID go with every base
objective that has rewards, those with a critic included: they read and write advantages token by
token, sign and size of each its own, so nothing is lost where a base gives every token another
number. The exception is RLSD's filter, which judges a whole rollout by its first token.

A section that is there counts, also with weight 0: what is measured needs the same things. Settings
that do nothing beside another are in `trainer.config.dead_switches`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainer.config.dead_switches import dead_switches

if TYPE_CHECKING:
    from trainer.config import Config

__all__ = ["conflicts"]

Rule = Callable[["Config", dict[str, Any]], str | None]


def conflicts(config: Config) -> list[str]:
    """What in a config excludes each other or does nothing, one sentence or two for each pair.

    Every message names both keys and what to change. `Config.check` refuses a config with any.
    """
    active = dict(config.auxiliary.active())
    found = (rule(config, active) for rule in _RULES)
    return [*(reason for reason in found if reason is not None), *dead_switches(config)]


def _serl_and_kl(config: Config, active: dict[str, Any]) -> str | None:
    if "serl" not in active or not config.objective.kl_coef > 0:
        return None
    return (
        f"auxiliary.serl refuses objective.kl_coef={config.objective.kl_coef}: in the published "
        "recipe the teacher takes the place of the reference policy, and there is no KL. Set it "
        "to 0."
    )


def _serl_without_base(config: Config, active: dict[str, Any]) -> str | None:
    if "serl" not in active or config.base_active or active["serl"].act_weight > 0:
        return None
    return (
        "auxiliary.serl reweights the base objective's advantages, and with objective.name=none "
        "there are none. Choose a base objective, or set auxiliary.serl.act_weight."
    )


def _rlsd_without_base(config: Config, active: dict[str, Any]) -> str | None:
    if "rlsd" not in active or config.base_active:
        return None
    return (
        "auxiliary.rlsd reweights the base objective's advantages, and with objective.name=none "
        "there are none. Choose a base objective."
    )


def _opid_without_base(config: Config, active: dict[str, Any]) -> str | None:
    if "opid" not in active or config.base_active:
        return None
    return (
        "auxiliary.opid adds to the advantages of the base's policy loss, and objective.name=none "
        "has none. Choose a base objective, or auxiliary.seed, whose term is a loss of its own."
    )


def _opd_without_base(config: Config, active: dict[str, Any]) -> str | None:
    if "opd" not in active or config.base_active or active["opd"].form != "advantage":
        return None
    return (
        "auxiliary.opd.form=advantage trains through the base's policy loss, and "
        "objective.name=none has none. Use form=loss, or a base objective: with combine=replace "
        "its rewards are off."
    )


def _replacing(active: dict[str, Any]) -> Any:
    """The section `opd` where it puts its own in the place of every advantage, else None."""
    section = active.get("opd")
    replaces = section is not None and (section.form, section.combine) == ("advantage", "replace")
    return section if replaces else None


def _opd_replaces(config: Config, active: dict[str, Any]) -> str | None:
    if _replacing(active) is None:
        return None
    others = [name for name in ("serl", "rlsd", "opid", "luffy") if name in active]
    if not others:
        return None
    return (
        f"auxiliary.opd.combine=replace puts its own in the place of every advantage, and "
        f"auxiliary.{others[0]} works on what the rewards gave. Use combine=add or form=loss."
    )


def _opd_replaces_kl(config: Config, active: dict[str, Any]) -> str | None:
    objective = config.objective
    if _replacing(active) is None:
        return None
    if objective.kl_placement != "reward" or not objective.kl_coef > 0:
        return None
    return (
        "auxiliary.opd.combine=replace puts its own in the place of every advantage, and with "
        f"objective.kl_placement=reward the KL of objective.kl_coef={objective.kl_coef} is in "
        "them. Use kl_placement=loss, or combine=add."
    )


def _opd_replaces_by_its_start(config: Config, active: dict[str, Any]) -> str | None:
    section = _replacing(active)
    if section is None or section.teacher is not None or not section.weight > 0:
        return None
    return (
        "auxiliary.opd.combine=replace switches the rewards off, and auxiliary.opd.teacher=null is "
        "the policy as it was at the start, which would learn from itself alone. Give the teacher "
        "a model folder, or use combine=add."
    )


def _own_start_alone(config: Config, active: dict[str, Any]) -> str | None:
    """A pull to the initial policy, and nothing that moves the policy from there."""
    names = ("opd", "gkd")
    pulls = [n for n in names if n in active and active[n].teacher is None and active[n].weight > 0]
    if not pulls or config.base_active:
        return None
    if any(section.weight > 0 for name, section in active.items() if name not in pulls):
        return None
    return (
        f"auxiliary.{pulls[0]}.teacher=null is the policy as it was at the start, and with "
        "objective.name=none nothing else moves the policy from there: its gradient stays 0. Give "
        "the teacher a model folder, or choose a base objective."
    )


def _two_reweightings(config: Config, active: dict[str, Any]) -> str | None:
    if not {"serl", "rlsd"} <= active.keys():
        return None
    return (
        "auxiliary.serl and auxiliary.rlsd both multiply the same advantages by what a teacher "
        "thinks of the token: together the published bound on the factor would not hold. Use one."
    )


def _two_readings(config: Config, active: dict[str, Any]) -> str | None:
    if not {"opsd", "opsd_legacy"} <= active.keys():
        return None
    return (
        "auxiliary.opsd and auxiliary.opsd_legacy are two readings of one method, a divergence "
        "and the loss of the published tables. Use one."
    )


def _filter_by_token(config: Config, active: dict[str, Any]) -> str | None:
    objective = config.objective
    paid = objective.kl_coef > 0 and objective.kl_placement == "reward"
    by_token = objective.name in ("ppo", "ppo_trajectory")
    with_kl = objective.name == "reinforce_pp" and paid
    if "rlsd" not in active or not (by_token or with_kl):
        return None
    if active["rlsd"].rollout_filter == "all":
        return None
    kl = " and objective.kl_placement=reward" if with_kl else ""
    return (
        f"auxiliary.rlsd.rollout_filter={active['rlsd'].rollout_filter} reads a reply's advantage "
        f"at its first token, and with objective.name={objective.name}{kl} every token has "
        "another. Use all."
    )


def _seed_after_the_run(config: Config, active: dict[str, Any]) -> str | None:
    if "seed" not in active or not active["seed"].start_after >= max(config.run.iterations, 1):
        return None
    return (
        f"auxiliary.seed.start_after={active['seed'].start_after} is the first iteration with its "
        f"loss, and run.iterations={config.run.iterations} ends before. Use a smaller one."
    )


def _gspo_by_token(config: Config, active: dict[str, Any]) -> str | None:
    if config.objective.name != "gspo" or config.objective.ratio != "token":
        return None
    return (
        "objective.ratio=token leaves nothing of objective.name=gspo: what it adds to GRPO is the "
        "ratio of a whole reply. Use objective.name=grpo, or ratio=sequence."
    )


def _luffy_without_groups(config: Config, active: dict[str, Any]) -> str | None:
    if "luffy" not in active or config.objective.needs_groups:
        return None
    return (
        f"auxiliary.luffy puts oracle episodes into groups, and objective.name="
        f"{config.objective.name} has none. Use one with groups, e.g. grpo."
    )


def _luffy_and_chord(config: Config, active: dict[str, Any]) -> str | None:
    if not {"luffy", "chord"} <= active.keys():
        return None
    return (
        "auxiliary.luffy and auxiliary.chord both mix oracle episodes into the base loss: CHORD "
        "would scale down the base whose advantages LUFFY's rows have moved. Use one."
    )


def _luffy_and_dynamic_sampling(config: Config, active: dict[str, Any]) -> str | None:
    if "luffy" not in active or not config.objective.dynamic_rounds:
        return None
    return (
        f"auxiliary.luffy is for groups that fail as a whole, and objective.dynamic_rounds="
        f"{config.objective.dynamic_rounds} draws those again before an oracle episode can join "
        "them. Set it to 0."
    )


def _lonely(config: Config, active: dict[str, Any]) -> str | None:
    if config.rollout.rollouts > 1:
        return None
    wants: dict[str, Callable[[Any], bool]] = {
        "serl": lambda s: s.source.startswith("success+") or s.source == "judge_current_success",
        "rlsd": lambda s: s.context == "success",
        "opsd": lambda s: s.context == "success",
        "opsd_legacy": lambda s: s.context == "success",
        "sdpo": lambda s: not s.feedback,
    }
    lonely = [name for name, needs in wants.items() if name in active and needs(active[name])]
    if not lonely:
        return None
    field = {"serl": "source", "sdpo": "feedback"}.get(lonely[0], "context")
    return (
        f"auxiliary.{lonely[0]}.{field} shows the teacher a won rollout of another member of the "
        "group, and rollout.rollouts=1 leaves none. Use 2 or more, or another "
        f"auxiliary.{lonely[0]}.{field}."
    )


def _react_and_thoughts(config: Config, active: dict[str, Any]) -> str | None:
    if config.prompt.template != "react" or "sero" not in active:
        return None
    mode = active["sero"].think_mode
    if mode == "empty":
        return None
    return (
        f"prompt.template=react has no tags around a thought, which auxiliary.sero.think_mode="
        f"{mode} puts something between. Use think_mode=empty."
    )


_RULES: tuple[Rule, ...] = (
    _react_and_thoughts,
    _serl_and_kl,
    _serl_without_base,
    _rlsd_without_base,
    _opid_without_base,
    _opd_without_base,
    _opd_replaces,
    _opd_replaces_kl,
    _opd_replaces_by_its_start,
    _own_start_alone,
    _two_reweightings,
    _two_readings,
    _filter_by_token,
    _seed_after_the_run,
    _gspo_by_token,
    _luffy_without_groups,
    _luffy_and_chord,
    _luffy_and_dynamic_sampling,
    _lonely,
)
