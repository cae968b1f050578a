"""Speed of training: our iteration beside TRL's, kept conversations, and what SERO costs.

========================= =====================================================================
`ratio_trl`               our end-to-end tokens a second over those of TRL's GRPO trainer: same
                          weights, prompts, counts and lengths, one optimiser step on each
                          iteration's replies; None without TRL
`ratio_chat`              a growing conversation with its keys and values kept between turns, over
                          reading it anew at every turn (`trainer.bench.sessions`)
`sero_share`              SERO's part of an iteration at reference proportions
                          (`trainer.bench.train_sero_cost`)
`tokens_per_s`            ours: prompts and replies of an iteration over its seconds
`ratio_trl_cpu`           seconds of processor time, TRL's over ours: less moved by other processes
`mfu`                     model FLOP utilisation; None on a CPU, whose peak is not known
========================= =====================================================================

Both trainers run in turn, each warmed up, and medians are taken. An end token outside the model's
vocabulary makes every reply `new_tokens` long, so both sides run over the same numbers of tokens,
which are counted and compared. Each side is its users' own code: ours an iteration of
`trainer.iteration.Trainer` with GRPO on one-turn episodes, TRL's `GRPOTrainer.train`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import STANDARD
from agent_envs.errors import DataError, MissingExtra
from trainer.bench import sessions, train_sero_cost
from trainer.bench.train_trl import CANDIDATES, PeerRefusal, TrlPeer, trl_settings
from trainer.bench.train_world import texts_of, write_tasks
from trainer.config import Config, load_config
from trainer.iteration import Trainer
from trainer.models.tiny import TinyConfig, build_model, load_policy, save_policy, train_tokenizer
from trainer.runs.folder import RunFolder

__all__ = ["AT_LEAST", "BELOW", "QUICK", "Plan", "figures", "measure", "missed"]

AT_LEAST = {"ratio_trl": 2.0, "ratio_chat": 3.0}
"""The smallest ratios with which the benchmark passes; what was not measured is not missed."""

BELOW = {"sero_share": 0.15}
"""What has to stay below."""

LR, WEIGHT_DECAY, GRAD_CLIP = 1.5e-4, 0.01, 1.0
"""Of AdamW, on both sides."""

_NEVER = "<never>"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        prompts, rollouts: of an iteration that both trainers run.
        new_tokens: length of every reply.
        micro_batch_tokens: of one forward and backward pass, padding included.
        repeats: iterations of each side that count; one before them does not.
        shape: of the policy that both sides train.
        conversation: sizes of the growing conversation; None: the reference's 12 turns.
        sero: proportions of the iteration with SERO.
        threads: of torch, on both sides.
        seed: of weights, games and draws.
    """

    prompts: int = 4
    rollouts: int = 8
    new_tokens: int = 64
    micro_batch_tokens: int = 4096
    repeats: int = 3
    shape: TinyConfig = sessions.SHAPE
    conversation: sessions.Conversation | None = None
    sero: train_sero_cost.Proportions = train_sero_cost.REFERENCE
    threads: int = 1
    seed: int = 0


QUICK = Plan(
    prompts=2,
    rollouts=2,
    new_tokens=4,
    repeats=2,
    shape=TinyConfig(32, 64, 2, 2, 1),
    conversation=sessions.Conversation(turns=3, rows=1, first=16, later=4, reply=2),
    sero=train_sero_cost.QUICK,
)
"""Everything once, too small for its figures to mean anything."""


def measure(plan: Plan, progress: Progress, peer: str | None = None) -> dict[str, Any]:
    """Runs the whole comparison and returns its figures (see the module's table).

    Args:
        progress: called with a line of text as the measurement goes on.
        peer: interpreter of TRL; None: this one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with TemporaryDirectory() as folder:
            base = _measure_base(plan, Path(folder), progress, peer)
        progress("conversations")
        chat = [
            sessions.measure(plan.conversation, seed=plan.seed, repeats=1)
            for _ in range(plan.repeats)
        ]
        sero = train_sero_cost.measure(plan.sero, progress, seed=plan.seed)
    finally:
        torch.set_num_threads(threads)
    return figures(plan, base, chat, sero)


def figures(
    plan: Plan,
    base: Mapping[str, Any],
    chat: Sequence[Mapping[str, float]],
    sero: Mapping[str, Any],
) -> dict[str, Any]:
    """Reduces what was measured to the named figures."""
    ours, trl = _rates(base["ours"]), _rates(base["trl"])
    ratios = [t["seconds"] / o["seconds"] for o, t in zip(base["ours"], base["trl"], strict=False)]
    return {
        "ratio_trl": ours["tokens_per_s"] / trl["tokens_per_s"] if trl else None,
        "ratio_trl_cpu": trl["cpu_s"] / ours["cpu_s"] if trl else None,
        "ratio_trl_spread": [min(ratios), max(ratios)] if ratios else None,
        "ratio_chat": statistics.median(c["ratio"] for c in chat),
        "ratio_chat_spread": [min(c["ratio"] for c in chat), max(c["ratio"] for c in chat)],
        "sero_share": sero["share"],
        "sero_share_spread": sero["share_spread"],
        "tokens_per_s": ours["tokens_per_s"],
        "mfu": base["mfu"],
        "phases": {
            "ours": {k: ours[f"{k}_s"] for k in ("rollout", "update", "other")},
            "trl": {k: trl[f"{k}_s"] for k in ("rollout", "other")} if trl else None,
            "sero": sero["phases"],
        },
        "ours": ours,
        "trl": {**trl, "versions": base["versions"]} if trl else None,
        "trl_missing": base["missing"],
        "trl_tried": base["tried"],
        "trl_setting": base["setting"],
        "trl_config": base["config"],
        "sero": dict(sero),
        "parameters": base["parameters"],
        "plan": asdict(plan),
    }


def missed(result: Mapping[str, Any]) -> list[str]:
    """What does not reach its threshold, in words."""
    found = [
        f"{name} is {result[name]:.2f}, at least {least:g} was wanted"
        for name, least in AT_LEAST.items()
        if result[name] is not None and result[name] < least
    ]
    return found + [
        f"{name} is {result[name]:.1%}, less than {most:.0%} was wanted"
        for name, most in BELOW.items()
        if result[name] >= most
    ]


def _rates(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of one side's iterations; counts of tokens are the same in all."""
    if not steps:
        return {}
    tokens = steps[0]["prompt_tokens"] + steps[0]["reply_tokens"]
    seconds = statistics.median(step["seconds"] for step in steps)
    parts = {
        name: statistics.median(step[name] for step in steps)
        for name in ("rollout_s", "update_s", "other_s", "cpu_s")
        if name in steps[0]
    }
    return {
        "prompt_tokens": steps[0]["prompt_tokens"],
        "reply_tokens": steps[0]["reply_tokens"],
        "seconds": seconds,
        "seconds_each": [step["seconds"] for step in steps],
        "tokens_per_s": tokens / seconds,
        "rollout_tokens_per_s": steps[0]["reply_tokens"] / parts["rollout_s"],
        **{name: steps[0][name] for name in ("run_tokens",) if name in steps[0]},
        **parts,
    }


# --------------------------------------------------------------------- beside the other trainer


def _measure_base(
    plan: Plan, folder: Path, progress: Progress, python: str | None
) -> dict[str, Any]:
    progress("prompts and a policy")
    config = _lay_out(plan, folder)
    model, tokenizer = load_policy(folder / "policy")
    trainer = Trainer(config, RunFolder(folder / "run"), model, tokenizer)
    trainer.folder.path.mkdir()
    found: dict[str, Any] = {
        "trl": [], "versions": None, "missing": None, "tried": {}, "setting": None, "config": None,
        "parameters": sum(p.numel() for p in model.parameters()), "mfu": None,
    }  # fmt: skip
    with closing(trainer):
        prompts = [trainer.student.prompt(view) for view in _views(trainer)]
        ours: list[dict[str, Any]] = []
        try:
            peer = TrlPeer(python)
        except MissingExtra as error:
            progress(str(error))
            found["missing"] = str(error)
            for number in range(plan.repeats + 1):
                progress(f"ours {number}/{plan.repeats}")
                ours.append(_our_step(trainer, number))
        else:
            try:
                found["versions"] = peer.versions
                _beside(plan, folder, trainer, peer, prompts, ours, found, progress)
            finally:
                peer.end()
    found["ours"] = ours[1:]
    found["mfu"] = ours[-1]["mfu"]
    return found


def _lay_out(plan: Plan, folder: Path) -> Config:
    """Writes tasks and a policy, and returns the config of our side."""
    games = generate_game_set(plan.seed, {"train": max(plan.prompts, 8)}, STANDARD)
    chosen = games.task_ids("train")
    tasks = folder / "first_turns.json"
    write_tasks(games, chosen[: plan.prompts], tasks)
    tokenizer = train_tokenizer(texts_of(games, chosen))
    vocabulary = len(tokenizer)
    # The policy has no such token, so it cannot end a reply.
    tokenizer.add_special_tokens({"eos_token": _NEVER})
    model = build_model(vocabulary, plan.shape, seed=plan.seed, pad_id=tokenizer.pad_token_id)
    save_policy(folder / "policy", model, tokenizer)
    return load_config(
        {},
        {
            "run.seed": plan.seed,
            "run.threads": plan.threads,
            "env.id": "trainer.bench.train_world:OneTurnEnv",
            "env.data": str(tasks),
            "env.max_steps": 1,
            "prompt.max_prompt_tokens": plan.shape.max_positions - plan.new_tokens,
            "model.path": str(folder / "policy"),
            "rollout.tasks": plan.prompts,
            "rollout.rollouts": plan.rollouts,
            "rollout.max_new_tokens": plan.new_tokens,
            "rollout.reward": "env",
            "optim.lr": LR,
            "optim.weight_decay": WEIGHT_DECAY,
            "optim.grad_clip": GRAD_CLIP,
            "optim.steps": 1,
            "optim.warmup_steps": 0,
            "optim.micro_batch_tokens": plan.micro_batch_tokens,
            "eval.splits": ["train"],
        },
    )


def _views(trainer: Trainer) -> list[Any]:
    """What the policy is shown in each task."""
    from agent_envs.prompting import History

    env = trainer.envs[0]
    views = []
    for task_id in trainer.task_ids:
        observation, info = env.reset(options={"task_id": task_id})
        views.append(
            History().view(
                info["goal"], observation, info["admissible_actions"], info["action_templates"]
            )
        )
    return views


def _our_step(trainer: Trainer, number: int) -> dict[str, Any]:
    """One iteration of ours, in the words of `TrlPeer.step`."""
    start = time.process_time()
    m = trainer.iterate(number)
    cpu_s = time.process_time() - start
    known = m["time/collect"] + m["time/update"]
    return {
        "seconds": m["iteration_s"],
        "cpu_s": cpu_s,
        "rollout_s": m["time/collect"],
        "update_s": m["time/update"],
        "other_s": m["iteration_s"] - known,
        "prompt_tokens": m["prompt_tokens"],
        "reply_tokens": m["response_tokens"],
        "learnt_tokens": trainer.learner.work.trained,
        "run_tokens": trainer.learner.work.tokens,
        "mfu": m["perf/mfu"],
    }


def _their_step(peer: TrlPeer) -> dict[str, Any]:
    found = peer.step()
    found["rollout_s"] = found["generate_s"]
    found["other_s"] = found["seconds"] - found["generate_s"]
    return found


def _beside(
    plan: Plan,
    folder: Path,
    trainer: Trainer,
    peer: TrlPeer,
    prompts: Sequence[Sequence[int]],
    ours: list[dict[str, Any]],
    found: dict[str, Any],
    progress: Progress,
) -> None:
    """Finds TRL's fastest setting, then runs both trainers in turn."""
    texts = [trainer.student.tokenizer.decode(list(ids)) for ids in prompts]
    for name, differences in CANDIDATES.items():
        progress(f"TRL: {name}")
        try:
            _open(plan, folder, peer, texts, prompts, differences)
            seconds = [_their_step(peer)["seconds"] for _ in range(2)]
            peer.close()
            found["tried"][name] = {"seconds": min(seconds)}
        except PeerRefusal as error:
            found["tried"][name] = {"refused": str(error)}
    timed = {n: t["seconds"] for n, t in found["tried"].items() if "seconds" in t}
    if not timed:
        raise PeerRefusal(f"TRL ran with none of its settings: {found['tried']}")
    found["setting"] = min(timed, key=lambda name: timed[name])
    opened = _open(plan, folder, peer, texts, prompts, CANDIDATES[found["setting"]])
    found["config"] = opened["opened"]
    _their_step(peer)
    ours.append(_our_step(trainer, 0))
    for number in range(1, plan.repeats + 1):
        progress(f"both in turn {number}/{plan.repeats}")
        ours.append(_our_step(trainer, number))
        found["trl"].append(_their_step(peer))
        same_counts(ours[-1], found["trl"][-1])


def _open(
    plan: Plan,
    folder: Path,
    peer: TrlPeer,
    texts: Sequence[str],
    prompts: Sequence[Sequence[int]],
    differences: Mapping[str, Any],
) -> dict[str, Any]:
    rest = dict(differences)
    default = micro_batches_of(plan, max(map(len, prompts)))
    base = trl_settings(
        prompts=plan.prompts,
        rollouts=plan.rollouts,
        new_tokens=plan.new_tokens,
        micro_batches=rest.pop("micro_batches", default),
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        grad_clip=GRAD_CLIP,
        steps=plan.repeats + 8,
    )
    opened = peer.open(folder / "policy", texts, {**base, **rest}, plan.threads)
    if opened["prompt_ids"] != [list(ids) for ids in prompts]:
        raise DataError("TRL reads the prompts as other tokens than ours.")
    return opened


def micro_batches_of(plan: Plan, longest_prompt: int) -> int:
    """The fewest equal micro-batches, padding included, within `plan.micro_batch_tokens`."""
    rows = plan.prompts * plan.rollouts
    length = longest_prompt + plan.new_tokens
    return next(
        n
        for n in range(1, rows + 1)
        if rows % n == 0 and (rows // n * length <= plan.micro_batch_tokens or n == rows)
    )


def same_counts(ours: Mapping[str, Any], trl: Mapping[str, Any]) -> None:
    """Raises `DataError` where the two sides ran over different numbers of tokens."""
    for name in ("prompt_tokens", "reply_tokens"):
        if ours[name] != trl[name]:
            raise DataError(f"{name}: ours {ours[name]}, TRL {trl[name]}; they have to be equal.")
    if ours["learnt_tokens"] != ours["reply_tokens"]:
        raise DataError(
            f"Ours learnt from {ours['learnt_tokens']} of {ours['reply_tokens']} reply tokens; it "
            "has to be all of them."
        )
