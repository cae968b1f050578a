"""The distilling methods in a shop, with plain and with chat prompts."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.test_webshop_training import shop_config
from trainer.learning.learner import Learner
from trainer.methods.protocol import Setup
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.rollouts.rollout import Episode, PlaySettings, play
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SECTIONS: dict[str, Any] = {
    "auxiliary__opd": {"form": "exact"},
    "auxiliary__gkd": {"oracle": "goal"},
    "auxiliary__opsd": {"context": "plan"},
    "auxiliary__sdpo": {},
}
LEGACY: dict[str, Any] = {"auxiliary__opsd_legacy": {"context": "plan"}}


@pytest.mark.parametrize(
    ("template", "sections"), [("compact", SECTIONS), ("field", SECTIONS), ("field", LEGACY)]
)
def test_all_of_them_learn_in_a_shop(template: str, sections: dict[str, Any]) -> None:
    config = shop_config(
        auxiliary__sero=None, objective__name="none", optim__steps=1, prompt__template=template,
        prompt__max_prompt_tokens=6000, env__max_steps=6, rollout__max_new_tokens=200, **sections,
    )  # fmt: skip
    tokenizer = copy.deepcopy(small.tokenizer())
    tokenizer.chat_template = CHAT
    student, goals = make_student(config, None, tokenizer), open_tasks(config.env)
    task = split_tasks(config.env, goals, "train")[0]

    trajectories = play(
        [Episode(task, "g", f"t{i}", i) for i in range(2)],
        [make_env(config.env, goals, "train") for _ in range(2)],
        student,
        small.CommandSampler(lambda request, prompt: "search[shirt]"),
        PlaySettings(48, snapshots=True),
    )
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert all(turn.action_templates for turn in turns[:1])
    # The second one won, so that the first has a sibling to learn from.
    turns[-1] = replace(turns[-1], success=True)
    model = small.model()
    start = small.weights(model)

    def new_env() -> Any:
        return make_env(config.env, goals, "train")

    methods = make_methods(Setup(config, student, model, new_env))
    metrics = Learner(config, model, student, methods=methods).learn(
        0, turns, Phases(), trajectories
    )
    assert not small.same(start, small.weights(model))
    if sections is LEGACY:
        assert metrics["opsd_legacy/context_share"] > 0
    else:
        assert metrics["gkd/data_rows"] > 0
        assert metrics["opsd/context_share"] > 0
        assert metrics["sdpo/sibling_share"] == pytest.approx(0.5)
        assert metrics["sdpo/feedback_share"] == pytest.approx(0.5)
        for name in ("gkd", "opsd", "sdpo", "auxiliary"):
            assert math.isfinite(metrics[f"loss/{name}"])
    for method in methods:
        for turn, pair in getattr(method, "pairs", {}).items():
            reply = turns[turn].response_ids
            assert pair.student.ids == (*turns[turn].prompt_ids, *reply)
            assert pair.teacher.ids[-len(reply) :] == reply
