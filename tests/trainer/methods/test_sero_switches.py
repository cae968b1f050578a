"""Every switch of SERO changes what it says, and nothing else.

Roots, returns, thoughts, token sets, weights and schedules, each against a case by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_envs.prompting import FieldTemplate, FormattedReply
from oracles.base import Decision, History, PlanStatus
from tests.fakes import ByteTokenizer, ScriptedSampler
from tests.trainer import small
from tests.trainer.runs import run_config
from tests.trainer.test_webshop_training import first_come, shop_config
from trainer.auxiliary.sero import Branch, sero_loss
from trainer.branch_records import GrownRoot, RootChoice, branch_metrics, depth_at, weighting
from trainer.branch_targets import branch_prompts
from trainer.branching import Brancher, grow, play_on, score, select_roots, step_rows, with_rows
from trainer.config import Config, ConfigError, SeroConfig, from_dict, resolve
from trainer.data import Segment
from trainer.generation.base import GenerationRequest
from trainer.learner import Learner
from trainer.loop import train
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.sero import Sero
from trainer.metrics import Phases
from trainer.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.tokens import decode, encode_reply, encode_text, force_command
from trainer.update import score_segments
from trainer.worlds import make_env, open_tasks, split_tasks

CHOOSE = "I choose the next command."


def _config(**sero: Any) -> Config:
    switches = {f"auxiliary__sero__{key}": value for key, value in sero.items()}
    return small.small_config(
        **{
            "env__max_steps": 12,
            "auxiliary__sero": {},
            "prompt__max_prompt_tokens": 20_000,
            "rollout__max_new_tokens": 200,
            **switches,
        }
    )


def _brancher(config: Config, student: Student | None = None, sampler: Any = None) -> Brancher:
    section = config.auxiliary.sero
    assert section is not None
    env = make_env(config.env, small.games(), "train")
    return Brancher(config, section, env, student or small.student(config), sampler)


def _lookers(config: Config) -> list[Trajectory]:
    """Two groups of rollouts that look around and fail."""
    return small.rollouts(config, small.CommandSampler(lambda request, prompt: "look"))


def _grown(config: Config, trajectory: Trajectory, t: int = 0, oracle: Any = None) -> GrownRoot:
    brancher = _brancher(config)
    return grow(
        RootChoice(0, t),
        trajectory,
        brancher.env,
        oracle or brancher.oracle,
        brancher.student,
        brancher.section,
        config.rollout.max_new_tokens,
    )


def _reply_of(row: Segment, tokenizer: Any) -> str:
    """Text of a row's reply: behind the list of possible commands."""
    text = decode(tokenizer, list(row.ids))
    return text[max(text.rfind("\n"), text.rfind("[assistant]") + len("[assistant]") - 1) + 1 :]


def _picked(row: Segment, tokenizer: Any) -> str:
    return decode(tokenizer, [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep])


# ------------------------------------------------------------------------------ settings


def test_the_defaults_are_the_reading_of_the_description() -> None:
    assert asdict(SeroConfig()) == {
        "weight": 0.1, "rule": "sero", "delta": 0.9, "decay": "exponential",
        "normaliser": "selected", "branch_norm": "none", "w_min": 1e-4, "z_every": "iteration",
        "pool": "failed", "scheme": "rollout_then_step", "target": "success", "gamma": 1.0,
        "return_scale": 1.0, "think_mode": "empty", "think_text": CHOOSE, "loss_tokens": None,
        "z_tokens": "command", "token_weights": "none", "oracle": "planner",
        "oracle_budget_s": 1.0, "max_depth": None, "depth_iterations": 0, "depth_start": 1,
        "depth_direction": "forward",
    }  # fmt: skip
    assert SeroConfig().trained_tokens == "command_closing"
    assert SeroConfig(think_mode="full").trained_tokens == "all"
    assert SeroConfig(think_mode="full", loss_tokens="command").trained_tokens == "command"


def test_a_decay_is_a_number_or_matched_and_both_round_trip() -> None:
    half = SeroConfig(delta=0.5, rule="depth")
    assert _config(delta="0.5", rule="depth").auxiliary.sero == half
    matched = _config(delta="matched", rule="depth")
    assert matched.auxiliary.sero == SeroConfig(delta="matched", rule="depth")
    assert from_dict(resolve(matched)) == matched
    with pytest.raises(ConfigError, match=r"auxiliary\.sero\.delta='most' must be of type float"):
        _config(delta="most")


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"delta": 1.5}, r"delta=1\.5 must lie in \[0, 1\]"),
        ({"delta": "matched", "decay": "linear"}, "decay=linear has none"),
        ({"gamma": -0.1, "target": "reward"}, r"gamma=-0\.1 must lie"),
        ({"gamma": 0.9}, "target=success has none"),
        ({"gamma": 0.9, "target": "score"}, "target=score has none"),
        ({"think_text": " "}, "think_text=' ' must be plain text"),
        ({"think_text": "a</think>b"}, "without tags"),
        ({"think_text": "a <action>"}, "without tags"),
        ({"think_text": "\u6211"}, "Chinese"),
        ({"think_mode": "full"}, r"oracle=planner has none\. Give the 'module:factory'"),
        ({"depth_iterations": -1}, "depth_iterations=-1 must be at least 0"),
        ({"depth_start": 0}, "depth_start=0 must be positive"),
        ({"scheme": "critical"}, r"scheme='critical' must be one of rollout_then_step"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    switches: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(**switches)


# ------------------------------------------------------------------------------ roots


def test_schemes_choose_among_the_states_of_failed_rollouts() -> None:
    config = _config()
    trajectories = _lookers(config)[:3]
    # A success and unequal lengths, so that every scheme and pool is told apart.
    trajectories[1] = replace(trajectories[1], success=True)
    trajectories[2] = replace(trajectories[2], turns=trajectories[2].turns[:2])

    def chosen(scheme: str, pool: str = "failed") -> list[tuple[int, int]]:
        section = SeroConfig(scheme=scheme, pool=pool)  # type: ignore[arg-type]
        found = []
        for iteration in range(80):
            (root,) = select_roots(trajectories, section, 0, iteration)
            found.append((root.index, root.t))
        return found

    assert set(chosen("first")) == {(0, 0), (2, 0)}
    assert set(chosen("last")) == {(0, 11), (2, 1)}
    assert {index for index, _ in chosen("first", "any")} == {0, 1, 2}
    share = {s: sum(i == 2 for i, _ in chosen(s)) for s in ("rollout_then_step", "uniform_state")}
    # 2 of 14 states (11 of 80 draws), or one of two rollouts (40 of 80)
    assert share["uniform_state"] < 23 < share["rollout_then_step"]
    # Schemes share their draws: the rollout that is drawn first is the same.
    assert [i for i, _ in chosen("first")] == [i for i, _ in chosen("rollout_then_step")]


# ------------------------------------------------------------------------------ returns


def _paid(trajectory: Trajectory, rewards: Sequence[float]) -> Trajectory:
    turns = [
        replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
    return replace(trajectory, turns=tuple(turns))


def test_raw_rewards_are_discounted_from_the_root() -> None:
    trajectory = _paid(_lookers(_config())[0], [5.0, 0.25, 0.5, *([0.0] * 9)])
    plain = _grown(_config(target="reward"), trajectory, 1)
    paid = [step.reward for step in plain.branch.steps]
    assert paid[:-1] == [0.0] * (len(paid) - 1)
    assert paid[-1] > 0
    assert len(paid) >= 2
    assert (plain.G_pi, plain.G_O) == (0.75, paid[-1])
    assert plain.gate == min(1.0, paid[-1] - 0.75)
    halved = _grown(_config(target="reward", gamma=0.5, return_scale=4.0), trajectory, 1)
    assert halved.G_pi == 0.25 + 0.5 * 0.5
    assert 0.5 ** (len(paid) - 1) * paid[-1] == halved.G_O
    assert halved.gate == max(halved.G_O - halved.G_pi, 0.0) / 4.0
    success = _grown(_config(), trajectory, 1)
    assert (success.G_pi, success.G_O, success.gate) == (0.0, 1.0, 1.0)
    scored = _grown(_config(target="score"), replace(trajectory, score=0.25), 1)
    assert (scored.G_pi, scored.gate) == (0.25, scored.G_O - 0.25)


def test_a_return_that_is_not_finite_makes_the_branch_invalid() -> None:
    trajectory = _paid(_lookers(_config())[0], [math.nan, *([0.0] * 11)])
    root = _grown(_config(target="reward"), trajectory)
    assert (root.valid, root.gate, root.rows) == (False, 0.0, ())
    assert (root.reasons, root.gate_reason) == (("non_finite",), "invalid")
    assert _grown(_config(target="reward"), trajectory, 1).valid, "it lies before this root"


# ------------------------------------------------------------------------------ token sets

# <think> go </think> <action> look </action> <end>, one token each but the command
SETS = {
    "command": "look",
    "command_closing": "look</action>",
    "after_think": "<action>look</action>",
    "all": "<think>go</think><action>look</action>",
}


@pytest.mark.parametrize("tokens", SETS)
@pytest.mark.parametrize("kind", ["tiny", "bytes"])
def test_token_sets_by_hand(kind: str, tokens: Any) -> None:
    tok = small.tokenizer() if kind == "tiny" else ByteTokenizer()
    template = small.student(_config()).template
    end = tok.eos_token_id
    text = SETS["all"]
    target = encode_reply(template, "look", tok, end, thought="go", loss_tokens=tokens)
    other = encode_reply(template, "look", tok, end, thought="go", z_tokens=tokens)
    assert target.ids == other.ids == (*encode_text(tok, text), end)
    assert target.loss_mask == other.z_mask
    assert (target.z_mask, other.loss_mask) == (
        encode_reply(template, "look", tok, end, thought="go").z_mask,
        encode_reply(template, "look", tok, end, thought="go").loss_mask,
    )
    kept = [i for i, keep in zip(target.ids, target.loss_mask, strict=True) if keep]
    assert decode(tok, [i for i in kept if i != end]) == SETS[tokens]
    assert (end in kept) == (tokens != "command"), "the end token belongs to the closing"
    if kind == "bytes":
        start = text.index(SETS[tokens])
        stop = start + len(SETS[tokens])
        by_hand = [start <= i < stop for i in range(len(text))]
        assert target.loss_mask == (*by_hand, tokens != "command")
    else:
        size = len(encode_text(tok, "look"))
        goes = len(encode_text(tok, "go"))
        inside = {"command": 0, "command_closing": 0, "after_think": 1, "all": 3 + goes}[tokens]
        by_hand = [False] * (3 + goes - inside) + [True] * (inside + size)
        assert target.loss_mask == (*by_hand, *([tokens != "command"] * 2))


def test_without_a_thought_everything_is_behind_it() -> None:
    tok, template = ByteTokenizer(), small.student(_config()).template
    for tokens in ("after_think", "all"):
        target = encode_reply(template, "look", tok, 256, thought=None, loss_tokens=tokens)
        assert decode(tok, target.ids) == "<action>look</action>"
        assert target.loss_mask == (True,) * len(target.ids)
    empty = encode_reply(template, "look", tok, 256, loss_tokens="after_think")
    assert decode(tok, empty.ids) == "<think></think><action>look</action>"
    assert sum(empty.loss_mask) == len("<action>look</action>") + 1


def test_a_template_without_a_thought_takes_none() -> None:
    class Bare:
        def format_command(self, command: str) -> Any:
            return FormattedReply(command + "!", (0, len(command)), (len(command),) * 2)

    tok: Any = ByteTokenizer()
    assert decode(tok, encode_reply(Bare(), "look", tok, 256).ids) == "look!"  # type: ignore[arg-type]
    for thought in ("go", None):
        with pytest.raises(ValueError, match=r"'look!' does not begin with '<think></think>'"):
            encode_reply(Bare(), "look", tok, 256, thought=thought)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", SETS)
def test_a_set_for_the_loss_moves_the_loss_and_a_set_for_z_moves_z(tokens: str) -> None:
    trajectory = _lookers(_config())[0]
    plain = _grown(_config(), trajectory)
    loss = _grown(_config(loss_tokens=tokens), trajectory)
    z = _grown(_config(z_tokens=tokens), trajectory)
    tok = small.tokenizer()
    assert loss.z_rows == plain.z_rows
    assert z.rows == plain.rows
    assert [row.ids for row in loss.rows] == [row.ids for row in plain.rows]
    wanted = {
        "command": "{}",
        "command_closing": "{}</action><end>",
        "after_think": "<action>{}</action><end>",
        "all": "<think></think><action>{}</action><end>",
    }[tokens]
    for row, z_row, step in zip(loss.rows, z.z_rows, plain.branch.steps, strict=True):
        assert row.loss_mask == z_row.loss_mask
        assert _picked(row, tok) == wanted.format(step.action)


@pytest.mark.parametrize("tokens", SETS)
def test_weights_are_products_of_likelihoods_where_the_sets_coincide(tokens: str) -> None:
    """w_k = exp(-sum of l_j before k) at the behaviour parameters, for every set."""
    config = _config(loss_tokens=tokens, z_tokens=tokens, w_min=0.0)
    model = small.model(std=0.02)
    limits = PassLimits(4096, 0)
    (root,) = score([_grown(config, _lookers(config)[0])], model, limits)
    assert len(root.rows) >= 3
    nll = [-float(values.double().mean()) for values in score_segments(model, root.rows, limits)]
    for k, row in enumerate(step_rows([root], config.auxiliary.sero)):
        weight = row.coefficient * row.segment.trained / root.gate
        assert weight == pytest.approx(math.exp(-sum(nll[:k])), rel=1e-5)


# ------------------------------------------------------------------------------ thoughts


class _Thinker:
    """Walks through a script and says why; with `thought` None it says nothing."""

    privileged = False

    def __init__(self, thought: str | None) -> None:
        self.thought = thought

    def start(self, view: Any, history: History) -> int:
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        command = ("look", "inventory")[state % 2]
        thought = None if self.thought is None else self.thought.format(state)
        return Decision(PlanStatus.FOUND, command, thought=thought), state + 1


@pytest.mark.parametrize(
    ("mode", "head"),
    [
        ("none", ""),
        ("empty", "<think></think>"),
        ("template", f"<think>{CHOOSE}</think>"),
        ("template", "<think>Hm.</think>"),
    ],
)
def test_thoughts_of_their_own_making(mode: str, head: str) -> None:
    trajectory = _lookers(_config())[0]
    plain = _grown(_config(), trajectory)
    text = "Hm." if "Hm." in head else CHOOSE
    root = _grown(_config(think_mode=mode, think_text=text), trajectory)
    tok = small.tokenizer()
    assert len(root.rows) == len(plain.rows) >= 2
    for row, z_row, before, step in zip(
        root.rows, root.z_rows, plain.rows, root.branch.steps, strict=True
    ):
        assert _reply_of(row, tok) == f"{head}<action>{step.action}</action><end>"
        # Masked thought or none at all: the trained tokens are the same.
        assert _picked(row, tok) == _picked(before, tok) == f"{step.action}</action><end>"
        assert _picked(z_row, tok) == step.action
        assert row.ids == z_row.ids
        size = len(encode_text(tok, _reply_of(row, tok).removesuffix("<end>"))) + 1
        bare = len(encode_text(tok, _reply_of(before, tok).removesuffix("<end>"))) + 1
        assert row.ids[:-size] == before.ids[:-bare], "compact prompts never ask for a thought"


def test_a_full_thought_is_the_oracles_and_all_of_it_is_trained() -> None:
    config = _config(think_mode="full", oracle="some:oracle", max_depth=2)
    config_of = replace(config.auxiliary.sero, oracle="planner")  # type: ignore[type-var]
    trajectory = _lookers(_config())[0]
    brancher = Brancher(
        config, config_of, make_env(config.env, small.games(), "train"), small.student(config)
    )
    root = play_on(RootChoice(0, 0), trajectory, brancher.env, _Thinker("step {}"), config_of)
    assert [step.thought for step in root.branch.steps] == ["step 0", "step 1"]
    prompts = branch_prompts(root.branch, brancher.student, config_of)
    grown = with_rows(replace(root, gate=1.0), prompts, brancher.student, config_of, 200)
    tok = small.tokenizer()
    texts = [f"<think>step {k}</think><action>{c}</action><end>" for k, c in enumerate(
        ("look", "inventory"))]  # fmt: skip
    assert [_picked(row, tok) for row in grown.rows] == texts
    assert [_picked(row, tok) for row in grown.z_rows] == ["look", "inventory"]
    assert not any("step" in decode(tok, list(prompt)) for prompt in prompts), "never in a prompt"
    silent = play_on(RootChoice(0, 0), trajectory, brancher.env, _Thinker(None), config_of)
    with pytest.raises(ConfigError, match=r"gave no thought with 'look'.*Decision\.thought"):
        with_rows(replace(silent, gate=1.0), prompts, brancher.student, config_of, 200)


@pytest.mark.parametrize("thought", ["<action>go</action>", "\u6211", "</action>"])
def test_a_thought_that_would_act_or_is_malformed_makes_the_branch_invalid(thought: str) -> None:
    config = _config(max_depth=2)
    section = replace(config.auxiliary.sero, think_mode="full")  # type: ignore[type-var]
    brancher = _brancher(config)
    trajectory = _lookers(_config())[0]
    root = play_on(RootChoice(0, 0), trajectory, brancher.env, _Thinker(thought), section)
    grown = with_rows(replace(root, gate=1.0), [(5,)] * 2, brancher.student, section, 200)
    assert (grown.valid, grown.gate, grown.rows, grown.z_rows) == (False, 0.0, (), ())
    assert grown.reasons == ("bad_thought",)


# ------------------------------------------------------------------------------ forced replies


class _Pieces(ByteTokenizer):
    """Bytes, and longer pieces that only a sampler draws: 300 and on."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = dict(enumerate(pieces, 300))

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        raw = b"".join(
            self.pieces[i] if i in self.pieces else bytes([i] if i < 256 else []) for i in ids
        )
        return raw.decode(errors="replace")


def _forced(tok: Any, sampled: Sequence[int], **sets: Any) -> Any:
    template = small.student(_config()).template
    return force_command(template, "look", sampled, tok, [256], 256, **sets)


@pytest.mark.parametrize("tokens", SETS)
@pytest.mark.parametrize("kind", ["tiny", "bytes"])
def test_a_sampled_thought_keeps_its_ids_and_the_command_is_forced(kind: str, tokens: Any) -> None:
    tok = small.tokenizer() if kind == "tiny" else ByteTokenizer()
    template, end = small.student(_config()).template, tok.eos_token_id
    sampled = [*encode_text(tok, "<think>go</think>\n<action>inventory</action>"), end]
    got = force_command(
        template, "look", sampled, tok, [end], end, loss_tokens=tokens, z_tokens="command"
    )
    same = encode_reply(template, "look", tok, end, thought="go", loss_tokens=tokens)
    assert got == same
    swapped = force_command(template, "look", sampled, tok, [end], end, z_tokens=tokens)
    assert swapped is not None
    assert swapped.z_mask == same.loss_mask
    assert swapped.loss_mask == encode_reply(template, "look", tok, end, thought="go").loss_mask


def test_a_token_that_reaches_beyond_the_thought_makes_way() -> None:
    tok = _Pieces(b"k><a", b"go</thi")
    sampled = [*b"<think>", 301, ord("n"), 300, *b"ction>inventory</action>", 256]
    target = _forced(tok, sampled, loss_tokens="after_think", z_tokens="all")
    kept = (*b"<think>", 301, ord("n"))
    assert target.ids == (*kept, *b"k><action>look</action>", 256)
    assert decode(tok, target.ids) == "<think>go</think><action>look</action>"
    inside = len(kept) + len("k>")
    assert target.loss_mask == (False,) * inside + (True,) * (len(target.ids) - inside)
    assert target.z_mask == (True,) * len(target.ids)


def test_a_character_whose_bytes_are_cut_is_written_again() -> None:
    first, second = "\u00e9".encode()
    tok = _Pieces(bytes([second]) + b"</think><ac", b"<think>")
    sampled = [301, ord("a"), first, 300, *b"tion>inventory</action>", 256]
    target = _forced(tok, sampled)
    assert target.ids == (301, ord("a"), *"\u00e9</think><action>look</action>".encode(), 256)


@pytest.mark.parametrize("stop", [(), (256,)])
def test_a_reply_may_end_with_its_thought(stop: tuple[int, ...]) -> None:
    target = _forced(ByteTokenizer(), [*b"<think>go</think>", *stop], z_tokens="all")
    assert target.ids == (*b"<think>go</think><action>look</action>", 256)
    assert target.z_mask == (True,) * len(target.ids)


@pytest.mark.parametrize("text", ["", "<think>go", "<action>look</action>"])
def test_a_reply_that_ends_no_thought_gives_no_target(text: str) -> None:
    assert _forced(ByteTokenizer(), [*text.encode(), 256]) is None
    with pytest.raises(ValueError, match="empty command"):
        force_command(
            small.student(_config()).template, " ", b"<think></think>", ByteTokenizer(), [256], 256
        )


# ------------------------------------------------------------------------------ sampled thoughts


def _musing(requests: list[GenerationRequest] | None = None) -> small.CommandSampler:
    """Thinks of a number drawn from the request's own stream."""

    def choose(request: GenerationRequest, prompt: str) -> str:
        assert request.rng is not None
        if requests is not None:
            requests.append(request)
        return f"<think>{int(request.rng.integers(1000))}</think><action>look</action>"

    return small.CommandSampler(choose)


def test_sampled_thoughts_stand_before_the_forced_command() -> None:
    config = _config(think_mode="sampled")
    trajectories = _lookers(config)
    requests: list[GenerationRequest] = []
    sampler = _musing(requests)
    roots = _brancher(config, sampler=sampler).branch(0, trajectories, small.model())
    tok = small.tokenizer()
    thoughts = []
    for root in roots:
        assert root.gate == 1.0
        assert len(root.logz) == len(root.rows) == len(root.branch.steps)
        for row, z_row, step in zip(root.rows, root.z_rows, root.branch.steps, strict=True):
            thought, _, rest = _reply_of(row, tok).partition("</think>")
            thoughts.append(thought.removeprefix("<think>"))
            assert thoughts[-1].isdigit()
            assert rest == f"<action>{step.action}</action><end>"
            assert _picked(row, tok) == f"{step.action}</action><end>", "the thought is context"
            assert _picked(z_row, tok) == step.action
    assert len(set(thoughts)) > 1
    assert sampler.sizes == [len(thoughts)], "one batch for all roots"
    assert {(r.max_new_tokens, r.temperature, r.greedy) for r in requests} == {(200, 1.0, False)}
    asked = [tuple(r.prompt_ids) for r in requests]
    assert asked == [row.ids[: len(p)] for row, p in zip(
        [row for root in roots for row in root.rows], asked, strict=True)]  # fmt: skip


def test_sampled_thoughts_follow_from_their_keys_alone() -> None:
    config = _config(think_mode="sampled")
    trajectories = _lookers(config)
    model = small.model()

    def rows(found: list[Trajectory], seed: int = 0) -> dict[str, Any]:
        seeded = config.replace(**{"run.seed": seed})
        roots = _brancher(seeded, sampler=_musing()).branch(0, found, model)
        return {found[root.choice.index].episode.uid: root.rows for root in roots}

    both = rows(trajectories)
    assert both == rows(trajectories)
    assert len(both) == 2
    swapped = [*trajectories[3:], *trajectories[:3]]
    assert rows(swapped) == both
    for uid, own in both.items():
        alone = [t for t in trajectories if t.episode.uid == uid]
        assert rows(alone) == {uid: own}
    moved = rows(trajectories, seed=1)
    assert any(
        small.tokenizer().decode(list(a.ids)) != small.tokenizer().decode(list(b.ids))
        for uid in both
        for a, b in zip(both[uid], moved[uid], strict=False)
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("<action>look</action>", "no_thought"),
        ("<think>on and on", "no_thought"),
        ("go</think><action>look</action>", "bad_thought"),
        ("<think><action>go</action></think>", "bad_thought"),
        ("<think>" + "on " * 250 + "</think>", "no_thought"),
    ],
)
def test_a_reply_without_a_usable_thought_makes_the_branch_invalid(reply: str, reason: str) -> None:
    config = _config(think_mode="sampled")
    sampler = small.CommandSampler(lambda request, prompt: reply)
    roots = _brancher(config, sampler=sampler).branch(0, _lookers(config), small.model())
    assert len(roots) == 2
    for root in roots:
        assert (root.valid, root.gate, root.rows, root.logz) == (False, 0.0, (), ())
        assert root.reasons == (reason,)
    metrics = branch_metrics(roots, config.auxiliary.sero, 2)
    assert metrics["sero/invalid_reasons"] == {reason: 2}


def test_targets_and_prompts_that_are_too_long_name_themselves() -> None:
    config = _config(think_mode="sampled")
    trajectories = _lookers(config)[:3]
    brancher = _brancher(config, sampler=_musing())
    (whole,) = brancher.branch(0, trajectories, small.model())
    longest = max(len(row.ids) for row in whole.rows)
    requests: list[GenerationRequest] = []
    tight = _brancher(config, sampler=_musing(requests))
    tight.student = replace(tight.student, max_prompt_tokens=longest // 2)
    (root,) = tight.branch(0, trajectories, small.model())
    assert root.reasons == ("prompt_too_long",)
    assert all(len(request.prompt_ids) <= longest // 2 for request in requests)
    short = _config(think_mode="template").replace(**{"rollout.max_new_tokens": 8})
    assert _grown(short, trajectories[0]).reasons == ("target_too_long",)
    plain = _grown(_config(), trajectories[0])
    size = max(len(small.student(config).target(step.action).ids) for step in plain.branch.steps)
    for limit, reasons in ((size, ()), (size - 1, ("target_too_long",))):
        limited = _config().replace(**{"rollout.max_new_tokens": limit})
        assert _grown(limited, trajectories[0]).reasons == reasons


def test_nothing_is_sampled_where_no_gate_is_open() -> None:
    config = _config(think_mode="sampled", pool="any")
    winner = small.CommandSampler(lambda request, prompt: small.walkthroughs()[prompt])
    sampler = _musing()
    trajectories = small.rollouts(config, winner)
    assert all(t.success for t in trajectories)
    trajectories = [replace(t, success=i > 0) for i, t in enumerate(trajectories[:3])]
    closed = config.replace(**{"auxiliary.sero.max_depth": 1})
    (root,) = _brancher(closed, sampler=sampler).branch(0, trajectories, small.model())
    assert (root.gate, sampler.sizes) == (0.0, [])


def test_thoughts_need_somebody_to_think() -> None:
    config = _config(think_mode="sampled")
    with pytest.raises(ConfigError, match=r"think_mode=sampled.*nothing to sample with"):
        _brancher(config)
    with pytest.raises(ValueError, match="needs the policy's replies"):
        _grown_with(config)


def _grown_with(config: Config) -> GrownRoot:
    brancher = _brancher(config, sampler=_musing())
    return grow(
        RootChoice(0, 0), _lookers(config)[0], brancher.env, brancher.oracle, brancher.student,
        brancher.section, 200,
    )  # fmt: skip


def test_a_run_samples_thoughts_with_its_own_policy(tmp_path: Any) -> None:
    config = run_config(
        tmp_path, auxiliary__sero={"think_mode": "sampled"}, run__iterations=1,
        env__max_steps=8, rollout__max_new_tokens=16,
    )  # fmt: skip
    (metrics,) = train(config, tmp_path / "run").metrics
    # A policy with random weights hardly ever ends a thought.
    assert metrics["sero/roots"] == 2
    reasons = metrics["sero/invalid_reasons"]
    assert reasons.get("no_thought", 0) + metrics["sero/gate_reasons"].get("active", 0) == 2


# ------------------------------------------------------------------------------ chat and WebShop


def _chat(config: Config, games: Any, task: str, script: Any) -> tuple[Student, Trajectory]:
    student = small.student_for(config, ByteTokenizer())
    (trajectory,) = play(
        [Episode(task, "g", "t", 0)],
        [make_env(config.env, games, "train")],
        student,
        ScriptedSampler(ByteTokenizer(), script),
        PlaySettings(200, snapshots=True),
    )
    return student, trajectory


def _looking(prompt: str) -> str:
    return "<think></think><action>look</action>"


@pytest.mark.parametrize("world", ["alfworld", "webshop"])
def test_a_chat_prompt_asks_for_no_thought_where_none_is_trained(world: str) -> None:
    chat = {"prompt.template": "field", "prompt.max_prompt_tokens": 50_000}
    if world == "alfworld":
        config, games, script = _config().replace(**chat), small.games(), _looking
    else:
        config = shop_config(env__max_steps=8, rollout__max_new_tokens=200).replace(**chat)
        games, script = open_tasks(config.env), first_come
    task = split_tasks(config.env, games, "train")[0]
    student, trajectory = _chat(config, games, task, script)
    grown = {}
    for mode in ("empty", "none", "sampled"):
        one = config.replace(**{"auxiliary.sero.think_mode": mode})
        musing = ScriptedSampler(ByteTokenizer(), lambda _: "<think>hm</think><action>look</act")
        section = one.auxiliary.sero
        assert section is not None
        brancher = Brancher(one, section, make_env(one.env, games, "train"), student, musing)
        failed = replace(trajectory, success=False)
        (grown[mode],) = brancher.branch(0, [failed], _Uniform())
    tok = ByteTokenizer()
    assert len(grown["empty"].rows) == len(grown["none"].rows) == len(grown["sampled"].rows) > 0
    t = grown["empty"].choice.t
    own = trajectory.turns[t].prompt_ids
    assert grown["empty"].rows[0].ids[: len(own)] == own
    assert grown["sampled"].rows[0].ids[: len(own)] == own
    for with_it, without, step in zip(
        grown["empty"].rows, grown["none"].rows, grown["none"].branch.steps, strict=True
    ):
        asked, plain = decode(tok, with_it.ids), decode(tok, without.ids)
        assert asked.endswith(f"[assistant]<think></think><action>{step.action}</action>")
        assert plain.endswith(f"[assistant]<action>{step.action}</action>")
        assert "<think>" in asked
        assert "think" not in plain.lower().replace("thinkpad", "")
        # Up to the instruction the two prompts are one.
        cut = asked.index("Decide on the next command.")
        assert plain[:cut] == asked[:cut]
        assert "inside <action> and </action>." in plain[cut:]
    for row, step in zip(grown["sampled"].rows, grown["sampled"].branch.steps, strict=True):
        assert decode(tok, row.ids).endswith(f"<think>hm</think><action>{step.action}</action>")


class _Uniform(torch.nn.Module):
    """Every byte is as likely as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Any, use_cache: bool = False, logits_to_keep: Any = 0) -> Any:
        count = len(logits_to_keep) if isinstance(logits_to_keep, torch.Tensor) else 1
        return SimpleNamespace(logits=self.weight * torch.zeros(len(input_ids), count, 257))


def test_asking_for_no_thought_is_part_of_the_templates_hash() -> None:
    assert FieldTemplate().hash == FieldTemplate(think=True).hash
    assert FieldTemplate().hash != FieldTemplate(think=False).hash


# ------------------------------------------------------------------------------ weights in a run


def _scored(config: Config, model: Any) -> list[GrownRoot]:
    return _brancher(config).branch(0, _lookers(config), model)


def _method(config: Config, model: Any, roots: Sequence[GrownRoot]) -> Sero:
    method = Sero(Setup(config, small.student(config), model), config.auxiliary.sero)
    method.prepare(Rollouts(0, (), ()), model)
    method.roots = roots
    return method


def _step(iteration: int = 0, epoch: int = 0) -> Step:
    return Step(iteration, epoch, 0, 1, ())


def _by_root(method: Sero, step: Step) -> list[list[int]]:
    """Which rows of each root a step trains."""
    kept = [row.segment for row in method.rows(step)]
    return [[k for k, row in enumerate(root.rows) if row in kept] for root in method.roots]


def test_a_growing_depth_trains_more_and_more_of_a_branch() -> None:
    model = small.model()
    config = _config(depth_iterations=10, w_min=0.0, rule="flat")
    roots = _scored(config, model)
    sizes = [len(root.rows) for root in roots]
    assert min(sizes) >= 3
    for direction in ("forward", "backward"):
        one = config.replace(**{"auxiliary.sero.depth_direction": direction})
        method = _method(one, model, roots)
        # k = 1 + floor(11 * iteration / 10), up to the 12 steps of the env
        for iteration, depth in ((0, 1), (1, 2), (9, 10), (10, 12), (99, 12)):
            assert depth_at(one.auxiliary.sero, 12, iteration) == depth
            expected = [
                list(range(min(depth, n)))
                if direction == "forward"
                else list(range(max(n - depth, 0), n))
                for n in sizes
            ]
            assert _by_root(method, _step(iteration)) == expected
    capped = config.replace(**{"auxiliary.sero.max_depth": 4, "auxiliary.sero.depth_start": 2})
    assert [depth_at(capped.auxiliary.sero, 12, i) for i in (0, 5, 10)] == [2, 3, 4]
    assert depth_at(_config().auxiliary.sero, 12, 0) is None
    metrics = branch_metrics(roots, config.auxiliary.sero, 2, 2)
    assert (metrics["sero/depth"], metrics["sero/rows"]) == (2, 4)
    assert metrics["sero/effective_depth"] == 2.0


def test_a_depth_beyond_the_longest_branch_is_refused_at_once() -> None:
    for switches in ({"depth_start": 13}, {"depth_start": 4, "max_depth": 3}):
        config = _config(depth_iterations=2, **switches)
        with pytest.raises(ConfigError, match=r"depth_start=\d+ exceeds the longest branch"):
            _brancher(config)
    _brancher(_config(depth_start=99))  # without a schedule it is not used


def test_a_matched_decay_gives_rule_depth_the_mass_of_sero() -> None:
    model = small.model(std=0.05)
    config = _config(rule="depth", delta="matched", w_min=0.0)
    roots = _scored(config, model)
    # Likelihoods that are neither 0 nor 1.
    roots = [replace(root, logz=(-0.4,) * len(root.rows)) for root in roots]
    sero = [sum(math.exp(-0.4 * k) for k in range(len(root.rows))) for root in roots]
    scheme = weighting(roots, config.auxiliary.sero)
    assert scheme.delta == pytest.approx(math.exp(-0.4), rel=1e-9)
    assert sum(sum(scheme.weights(root.logz)) for root in roots) == pytest.approx(sum(sero))
    # Matched over the iteration, not over a step's own roots.
    roots[1] = replace(roots[1], logz=(-2.0,) * len(roots[1].rows))
    delta = weighting(roots, config.auxiliary.sero).delta
    method = _method(config, model, roots)
    for index in (0, 1):
        rows = method.rows(Step(0, 0, index, 2, ()))
        masses = [row.coefficient * row.segment.trained for row in rows]
        assert masses == pytest.approx([delta**k for k in range(len(rows))])
    closed = [replace(root, gate=0.0) for root in roots]
    assert weighting(closed, config.auxiliary.sero).delta == 0.0
    assert branch_metrics(roots, config.auxiliary.sero, 2)["sero/delta"] == delta
    assert branch_metrics(roots, SeroConfig(), 2)["sero/delta"] is None


@pytest.mark.parametrize(
    ("switches", "masses"),
    [
        ({}, [1.0, 0.5, 0.25]),
        ({"rule": "flat"}, [1.0, 1.0, 1.0]),
        ({"rule": "root"}, [1.0]),
        ({"rule": "depth", "delta": 0.75}, [1.0, 0.75, 0.5625]),
        ({"rule": "depth", "decay": "harmonic"}, [1.0, 1 / 2, 1 / 3]),
        ({"rule": "depth", "decay": "linear"}, [1.0, 2 / 3, 1 / 3]),
        ({"branch_norm": "mass"}, [1 / 1.75, 0.5 / 1.75, 0.25 / 1.75]),
        ({"rule": "flat", "branch_norm": "mass"}, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rules_share_roots_gates_and_rows(switches: dict[str, Any], masses: list[float]) -> None:
    """Three states with z = 1/2 each; the mean over the tokens is taken out."""
    config = _config(w_min=0.0)
    root = _grown(config, _lookers(config)[0])
    rows = root.rows[:3], root.z_rows[:3]
    root = replace(root, rows=rows[0], z_rows=rows[1], logz=(math.log(0.5),) * 3)
    found = step_rows([root], replace(config.auxiliary.sero, **switches))  # type: ignore[type-var]
    assert [row.segment for row in found] == list(root.rows[: len(masses)])
    assert [row.coefficient * row.segment.trained for row in found] == pytest.approx(masses)


def test_normalisers_count_selected_valid_and_open_roots() -> None:
    config = _config(w_min=0.0)
    root = _grown(config, _lookers(config)[0])
    root = replace(root, rows=root.rows[:1], z_rows=root.z_rows[:1], logz=(0.0,))
    useless = replace(root, gate=0.0, rows=(), z_rows=(), logz=())
    roots = [root, useless, replace(useless, valid=False), replace(useless, valid=False)]
    for name, count in (("selected", 4), ("valid", 2), ("active", 1)):
        section = replace(config.auxiliary.sero, normaliser=name)  # type: ignore[type-var]
        (row,) = step_rows(roots, section)
        assert row.coefficient * row.segment.trained == pytest.approx(1 / count), name


def test_z_is_measured_again_in_every_epoch_if_asked_for() -> None:
    model = small.model(std=0.05)
    for every in ("iteration", "epoch"):
        config = _config(z_every=every, w_min=0.0)
        trained = small.twin(model)
        roots = _scored(config, trained)
        method = _method(config, trained, roots)
        before = [row.coefficient for row in method.rows(_step())]
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.mul_(2.0)
        after = sorted(row.coefficient for row in method.rows(_step(epoch=1)))
        limits = PassLimits(4096, small.student(config).pad_id)
        fresh = step_rows(score(roots, trained, limits), config.auxiliary.sero)
        expected = before if every == "iteration" else [row.coefficient for row in fresh]
        assert after == pytest.approx(sorted(expected), rel=1e-6)
        assert sorted(before) != pytest.approx(sorted(row.coefficient for row in fresh), rel=1e-3)
        assert method.roots is roots, "what is logged is the z of the rollouts' policy"


def _definition(roots: Sequence[GrownRoot], model: Any, config: Config) -> float:
    """The objective written branch by branch in float64, from z rows and loss rows."""
    limits = PassLimits(4096, 0)
    branches = []
    for root in roots:
        students = [v.double() for v in score_segments(model, root.rows, limits)]
        branches.append(
            Branch(root.valid, root.G_pi, root.G_O, behaviour=students, student=students)
        )
    section = config.auxiliary.sero
    assert section is not None
    result = sero_loss(branches, rule="flat", token_weights=section.token_weights)
    return float(result.loss.detach())


@pytest.mark.parametrize("weights", ["none", "chord"])
def test_token_weights_enter_the_trained_loss_and_its_gradient(weights: str) -> None:
    config = _config(rule="flat", w_min=0.0, token_weights=weights)
    model = small.model(std=0.05)
    roots = _scored(config, model)
    method = _method(config, model, roots)
    gradients = []
    for size in (10**9, 300):
        model.zero_grad()
        total = method.backward(model, _step(), PassLimits(size, 0))
        assert total == pytest.approx(_definition(roots, model, config), rel=1e-5)
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    # The last bias-free direction by differences of the plain NLL, weights held fixed.
    rows = method.rows(_step())
    limits = PassLimits(4096, 0)
    logps = score_segments(model, [row.segment for row in rows], limits)
    fixed = [lp.exp() * (1 - lp.exp()) if weights == "chord" else torch.ones_like(lp)
             for lp in logps]  # fmt: skip
    direction = [torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
                 for i, p in enumerate(model.parameters())]  # fmt: skip
    values = []
    for sign in (1.0, -1.0):
        moved = small.twin(model)
        with torch.no_grad():
            for p, d in zip(moved.parameters(), direction, strict=True):
                p.add_(sign * 1e-4 * d)
        again = score_segments(moved, [row.segment for row in rows], limits)
        values.append(
            sum(
                -row.coefficient * float((f.double() * lp.double()).sum())
                for row, f, lp in zip(rows, fixed, again, strict=True)
            )
        )
    slope = sum(
        float((p.grad.double() * d.double()).sum())
        for p, d in zip(model.parameters(), direction, strict=True)
    )
    assert method.weight * (values[0] - values[1]) / 2e-4 == pytest.approx(slope, rel=2e-2)


# ------------------------------------------------------------------------------ in the learner

SWITCHED: list[dict[str, Any]] = [
    {"think_mode": "none", "loss_tokens": "all", "z_tokens": "all"},
    {"think_mode": "template", "token_weights": "chord"},
    {"depth_iterations": 3, "depth_direction": "backward", "rule": "depth", "delta": "matched"},
    {"z_every": "epoch", "target": "reward", "gamma": 0.9, "scheme": "first"},
]


def _learned(config: Config, model: Any, turns: Any, roots: Sequence[GrownRoot]) -> dict[str, Any]:
    student = small.student(config)
    methods = []
    if config.auxiliary.sero is not None:
        methods = [Sero(Setup(config, student, model), config.auxiliary.sero)]
        methods[0].roots = roots
    return Learner(config, model, student, None, methods).learn(0, turns, Phases())


@pytest.mark.parametrize("switches", SWITCHED, ids=lambda s: next(iter(s.values())))
def test_with_weight_zero_no_switch_moves_the_base_and_with_weight_all_teach(
    switches: dict[str, Any],
) -> None:
    config = _config(**switches, w_min=0.0).replace(
        **{"optim.epochs": 2, "optim.steps": 1, "objective.kl_coef": 0.0}
    )
    trajectories = small.rollouts(config, small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    model = small.model(std=0.05)
    roots = _brancher(config).branch(0, trajectories, model)
    assert any(root.gate > 0 for root in roots)
    base, zero = small.twin(model), small.twin(model)
    _learned(config.replace(**{"auxiliary.sero": None}), base, turns, [])
    _learned(config.replace(**{"auxiliary.sero.weight": 0.0}), zero, turns, roots)
    assert not small.same(small.weights(model), small.weights(base))
    assert small.same(small.weights(base), small.weights(zero))
    # Alone and strong, it makes what it trains more likely.
    alone = config.replace(
        **{"objective.name": "none", "auxiliary.sero.weight": 1.0, "optim.lr": 1e-3}
    )
    taught = small.twin(model)
    metrics = _learned(alone, taught, turns, roots)
    assert metrics["loss/sero"] > 0
    limits = PassLimits(4096, 0)
    section = config.auxiliary.sero
    assert section is not None
    depth = depth_at(section, 12, 0)
    rows = step_rows(roots, section, weighting(roots, section, depth))
    segments = [row.segment for row in rows]
    gain = [
        row.coefficient * float((after - before).double().sum())
        for row, before, after in zip(
            rows,
            score_segments(model, segments, limits),
            score_segments(taught, segments, limits),
            strict=True,
        )
    ]
    assert sum(gain) > 0
