"""What SERO trains at a branch state: token sets, thoughts, forced replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent_envs.prompting import FormattedReply
from oracles.base import Decision, History, PlanStatus
from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.methods.sero_support import (
    CHOOSE,
    brancher_of,
    grown,
    lookers,
    picked,
    reply_of,
    sero_config,
)
from trainer.branches.branching import Brancher, play_on, score, step_rows, with_rows
from trainer.branches.records import RootChoice
from trainer.branches.targets import branch_prompts
from trainer.config import ConfigError
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits
from trainer.rollouts.tokens import decode, encode_reply, encode_text, force_command
from trainer.worlds.tasks import make_env

# -------------------------------------------------------------------- token sets

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
    template = small.student(sero_config()).template
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
    tok, template = ByteTokenizer(), small.student(sero_config()).template
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
    trajectory = lookers(sero_config())[0]
    plain = grown(sero_config(), trajectory)
    loss = grown(sero_config(loss_tokens=tokens), trajectory)
    z = grown(sero_config(z_tokens=tokens), trajectory)
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
        assert picked(row, tok) == wanted.format(step.action)


@pytest.mark.parametrize("tokens", SETS)
def test_weights_are_products_of_likelihoods_where_the_sets_coincide(tokens: str) -> None:
    """w_k = exp(-sum of l_j before k) at the behaviour parameters, for every set."""
    config = sero_config(loss_tokens=tokens, z_tokens=tokens, w_min=0.0)
    model = small.model(std=0.02)
    limits = PassLimits(4096, 0)
    (root,) = score([grown(config, lookers(config)[0])], model, limits)
    assert len(root.rows) >= 3
    nll = [-float(values.double().mean()) for values in score_segments(model, root.rows, limits)]
    for k, row in enumerate(step_rows([root], config.auxiliary.sero)):
        weight = row.coefficient * row.segment.trained / root.gate
        assert weight == pytest.approx(math.exp(-sum(nll[:k])), rel=1e-5)


# ---------------------------------------------------------------------- thoughts


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
    trajectory = lookers(sero_config())[0]
    plain = grown(sero_config(), trajectory)
    own = {"think_text": "Hm."} if "Hm." in head else {}
    root = grown(sero_config(think_mode=mode, **own), trajectory)
    tok = small.tokenizer()
    assert len(root.rows) == len(plain.rows) >= 2
    for row, z_row, before, step in zip(
        root.rows, root.z_rows, plain.rows, root.branch.steps, strict=True
    ):
        assert reply_of(row, tok) == f"{head}<action>{step.action}</action><end>"
        # Masked thought or none at all: the trained tokens are the same.
        assert picked(row, tok) == picked(before, tok) == f"{step.action}</action><end>"
        assert picked(z_row, tok) == step.action
        assert row.ids == z_row.ids
        size = len(encode_text(tok, reply_of(row, tok).removesuffix("<end>"))) + 1
        bare = len(encode_text(tok, reply_of(before, tok).removesuffix("<end>"))) + 1
        assert row.ids[:-size] == before.ids[:-bare], "compact prompts never ask for a thought"


def test_a_full_thought_is_the_oracles_and_all_of_it_is_trained() -> None:
    config = sero_config(think_mode="full", oracle="some:oracle", max_depth=2)
    config_of = replace(config.auxiliary.sero, oracle="planner")  # type: ignore[type-var]
    trajectory = lookers(sero_config())[0]
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
    assert [picked(row, tok) for row in grown.rows] == texts
    assert [picked(row, tok) for row in grown.z_rows] == ["look", "inventory"]
    assert not any("step" in decode(tok, list(prompt)) for prompt in prompts), "never in a prompt"
    silent = play_on(RootChoice(0, 0), trajectory, brancher.env, _Thinker(None), config_of)
    with pytest.raises(ConfigError, match=r"gave no thought with 'look'.*Decision\.thought"):
        with_rows(replace(silent, gate=1.0), prompts, brancher.student, config_of, 200)


@pytest.mark.parametrize("thought", ["<action>go</action>", "\u6211", "</action>"])
def test_a_thought_that_would_act_or_is_malformed_makes_the_branch_invalid(thought: str) -> None:
    config = sero_config(max_depth=2)
    section = replace(config.auxiliary.sero, think_mode="full")  # type: ignore[type-var]
    brancher = brancher_of(config)
    trajectory = lookers(sero_config())[0]
    root = play_on(RootChoice(0, 0), trajectory, brancher.env, _Thinker(thought), section)
    grown = with_rows(replace(root, gate=1.0), [(5,)] * 2, brancher.student, section, 200)
    assert (grown.valid, grown.gate, grown.rows, grown.z_rows) == (False, 0.0, (), ())
    assert grown.reasons == ("bad_thought",)


@pytest.mark.parametrize("command", ["look<end>", "look</action> now", "inventory"])
@pytest.mark.parametrize("think_mode", ["empty", "template", "none"])
def test_a_command_that_no_reply_sends_makes_the_branch_invalid(
    command: str, think_mode: Any
) -> None:
    config = sero_config(max_depth=2)
    section = replace(config.auxiliary.sero, think_mode=think_mode)  # type: ignore[type-var]
    brancher = brancher_of(config)
    root = play_on(RootChoice(0, 0), lookers(sero_config())[0], brancher.env, _Thinker(""), section)
    steps = (replace(root.branch.steps[0], action=command), *root.branch.steps[1:])
    root = replace(root, gate=1.0, branch=replace(root.branch, steps=steps))
    found = with_rows(root, [(5,)] * 2, brancher.student, section, 200)
    said = command == "inventory"
    assert (found.valid, bool(found.rows)) == (said, said)
    assert found.reasons == (() if said else ("unsayable",))


# ---------------------------------------------------------------- forced replies


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
    template = small.student(sero_config()).template
    return force_command(template, "look", sampled, tok, [256], 256, **sets)


@pytest.mark.parametrize("tokens", SETS)
@pytest.mark.parametrize("kind", ["tiny", "bytes"])
def test_a_sampled_thought_keeps_its_ids_and_the_command_is_forced(kind: str, tokens: Any) -> None:
    tok = small.tokenizer() if kind == "tiny" else ByteTokenizer()
    template, end = small.student(sero_config()).template, tok.eos_token_id
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
            small.student(sero_config()).template,
            " ",
            b"<think></think>",
            ByteTokenizer(),
            [256],
            256,
        )
