"""Tiny policies of ours in a conversation: no chat template, no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.short_runs import resumed_like_whole
from trainer.config import Config
from trainer.loop import train
from trainer.models.packing import chains
from trainer.models.tiny import save_policy
from trainer.rollouts.chat import NOTHING_SAID, TINY_TEMPLATE, ChatFormat
from trainer.rollouts.data import read_turns, segments_from_turns
from trainer.rollouts.tokens import decode, encode_text
from trainer.runs.folder import load_trained, make_student


def _config(**more: Any) -> Config:
    shape = {
        "prompt__context": "chat",
        "prompt__max_prompt_tokens": 900,
        "run__save_turns": True,
        "rollout__rollouts": 2,
        "env__max_steps": 4,
        "eval__tasks": 1,
    }
    return small.small_config(**(shape | more))


def test_its_template_adds_at_the_end_and_begins_as_a_plain_prompt() -> None:
    tok = small.tokenizer()
    made = ChatFormat(tok, (tok.eos_token_id,))
    assert made.append_only
    assert made.end_id == tok.eos_token_id
    assert tok.chat_template is None, "the tokenizer itself stays as it is"
    first = {"role": "user", "content": "task: put a mug\ncan:\nlook"}
    prompt = made.prompt(NOTHING_SAID, first)  # type: ignore[arg-type]
    assert list(prompt) == encode_text(tok, "task: put a mug\ncan:\nlook\n")
    messages = [first, {"role": "assistant", "content": "<action>look</action>"}, first]
    text = tok.apply_chat_template(messages, chat_template=TINY_TEMPLATE, tokenize=False)
    assert text == (
        "task: put a mug\ncan:\nlook\n<action>look</action><end>\ntask: put a mug\ncan:\nlook\n"
    )


@pytest.mark.parametrize(
    "auxiliary", [{"sero": {"think_mode": "sampled"}}, {"rlsd": {"context": "plan"}}], ids=str
)
def test_a_policy_of_another_run_learns_in_conversations(
    auxiliary: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "policy"
    save_policy(folder, small.model(), small.tokenizer())
    sections = {f"auxiliary__{name}": section for name, section in auxiliary.items()}
    c = _config(model__path=str(folder), run__iterations=2, **sections)
    resumed_like_whole(c, tmp_path)
    turns = read_turns(tmp_path / "whole/turns/000000.parquet")
    found = chains([segment.ids for segment in segments_from_turns(turns)])
    assert len(found) == len({(t.uid, t.tid) for t in turns}) < len(turns)
    later = next(turn for turn in turns if turn.t == 2)
    text = decode(small.tokenizer(), later.prompt_ids)
    assert text.count("task: ") == 1, "only the first message states the task"
    config, model, tokenizer, _ = load_trained(tmp_path / "whole")
    assert make_student(config, model, tokenizer).context == "chat"


def test_a_fresh_policy_needs_no_folder_and_has_places_for_an_episode(tmp_path: Path) -> None:
    sero = {"auxiliary__sero": {"think_mode": "none"}}
    c = _config(prompt__max_prompt_tokens=2000, run__iterations=1, env__max_steps=12, **sero)
    train(c, tmp_path / "run")
    _, model, tokenizer, _ = load_trained(tmp_path / "run")
    assert model.config.max_position_embeddings == 2024
    turns = read_turns(tmp_path / "run/turns/000000.parquet")
    assert max(len(turn.prompt_ids) for turn in turns) > 1024
    assert max(turn.t for turn in turns) == 11
    report = json.loads((tmp_path / "run/warmstart.json").read_text())
    assert report["rows"] > 8, "taught with whole conversations"
    assert decode(tokenizer, turns[-1].prompt_ids).count("task: ") == 1
