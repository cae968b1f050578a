"""What the policy is trained on at a branch state: its prompt, and the reply that is its target.

`think_mode` says what stands in the thought of that reply:

- "empty": nothing, `<think></think>`.
- "template": one neutral sentence.
- "sampled": what the policy itself thinks at that state; then the oracle's command is forced.
- "full": what the oracle thinks.
- "none": neither thought nor tags, and a prompt that does not ask for one.

Where no target can be made the reason is returned, and the branch is not used.

In a conversation (`prompt.context: chat`) the prompt of step k is the rollout's own conversation
up to the root, replies as they were sampled, and then what the branch showed, each observation
followed by the oracle's command as its target has it. Under "none" its first message, which states
the rules, does not ask for a thought; under "sampled" the target of a step is known only when the
policy has thought there, see `trainer.branches.thoughts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agent_envs.prompting import ChatTemplate, FieldTemplate, PromptTemplate, PromptView
from oracles.branch import Branch, BranchStep
from oracles.student_view import student_views
from trainer.config import ConfigError, SeroConfig
from trainer.rollouts.chat import Conversation
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import ReplyTarget, encode_reply, force_command, reply_text

__all__ = ["branch_prompts", "branch_student", "branch_talk", "branch_target", "branch_views"]

PROMPT_TOO_LONG: Final = "prompt_too_long"
TARGET_TOO_LONG: Final = "target_too_long"
NO_THOUGHT: Final = "no_thought"
"""The sampled reply ends no thought."""
BAD_THOUGHT: Final = "bad_thought"
"""Behind this thought the reply is malformed, or it sends another command than the oracle's."""
UNSAYABLE: Final = "unsayable"
"""No reply sends the oracle's command, which spells a control token or a tag."""


def branch_prompts(
    branch: Branch, student: Student, config: SeroConfig, before: Sequence[Turn] = ()
) -> list[tuple[int, ...]]:
    """Token ids of the student's prompt at each step of a branch; they may exceed its limit.

    Args:
        before: the rollout's turns up to the root; needed in chat, not looked at otherwise.

    Raises:
        ValueError: in chat, other turns than those before the root.
        ConfigError: in chat, think mode `sampled`.
    """
    asking = branch_student(student, config)
    if student.context == "chat":
        said = branch_talk(branch, student, config, before)
        return _chat_prompts(branch, asking, config, said)
    return [asking.prompt(view) for view in branch_views(branch)]


def branch_student(student: Student, config: SeroConfig) -> Student:
    """Who makes the prompts of branches: does not ask for a thought where targets have none."""
    if config.think_mode != "none":
        return student
    template = _without_thought(student.template)
    return student if template == student.template else replace(student, template=template)


def branch_talk(
    branch: Branch, student: Student, config: SeroConfig, before: Sequence[Turn]
) -> Conversation:
    """In chat, what was said before a branch: its rollout's turns, replies as they were sampled.

    Args:
        student: who played them.
        before: the rollout's turns up to the root.

    Raises:
        ValueError: other turns than those before the root.
    """
    if len(before) != branch.root_step:
        raise ValueError(
            f"The branch begins after {branch.root_step} turns of its rollout, and the prompts of "
            f"a conversation hold them; found {len(before)}. Give the turns before the root."
        )
    said = student.conversation(before)
    asking = branch_student(student, config).template
    if student.format is None or not before or asking == student.template:
        return said
    assert isinstance(asking, ChatTemplate)
    first = before[0]
    view = PromptView(
        goal=first.goal,
        observation=first.observation,
        admissible=first.admissible,
        action_templates=first.action_templates,
    )
    return student.format.retold(said, asking.message(view)["content"])


def _chat_prompts(
    branch: Branch, student: Student, config: SeroConfig, said: Conversation
) -> list[tuple[int, ...]]:
    if config.think_mode == "sampled":
        raise ConfigError(
            "auxiliary.sero.think_mode=sampled with prompt.context=chat: a later prompt of a "
            "branch holds the thoughts of its earlier steps. Sample them step by step, see "
            "trainer.branches.thoughts."
        )
    prompts: list[tuple[int, ...]] = []
    for view, step in zip(branch_views(branch), branch.steps, strict=True):
        prompts.append(student.prompt(view, said))
        target = _target(step, student, config, ())
        if isinstance(target, str):  # the branch is not used; its prompts are still of one shape
            target = student.target(step.action)
        said = student.answered(said, view, prompts[-1], target.ids)
    return prompts


def branch_views(branch: Branch) -> list[PromptView]:
    """What the student would see at each step of a branch, as its prompt is made from."""
    return [
        PromptView(
            goal=view.goal,
            observation=view.observation,
            admissible=view.admissible,
            history=tuple((item.observation, item.action) for item in view.history),
            step=view.step,
            action_templates=view.action_templates,
        )
        for view in student_views(branch)
    ]


def branch_target(
    step: BranchStep,
    prompt_ids: Sequence[int],
    student: Student,
    config: SeroConfig,
    max_target_tokens: int,
    sampled_ids: Sequence[int] = (),
) -> ReplyTarget | str:
    """The target at one step of a branch, or the reason why there is none.

    Args:
        prompt_ids: from `branch_prompts`.
        max_target_tokens: longest target, the end token included.
        sampled_ids: a reply of the policy to this prompt; for think mode `sampled`.

    Raises:
        ConfigError: think mode `full`, and the oracle has no thoughts.
    """
    if not student.fits(prompt_ids):
        return PROMPT_TOO_LONG
    target = _target(step, student, config, sampled_ids)
    if isinstance(target, ReplyTarget) and len(target.ids) > max_target_tokens:
        return TARGET_TOO_LONG
    return target


def _target(
    step: BranchStep, student: Student, config: SeroConfig, sampled_ids: Sequence[int]
) -> ReplyTarget | str:
    template, tokenizer, end_id = student.template, student.tokenizer, student.end_id
    target: ReplyTarget | None
    if config.think_mode == "sampled":
        target = force_command(
            template,
            step.action,
            sampled_ids,
            tokenizer,
            student.stop_ids,
            end_id,
            loss_tokens=config.trained_tokens,
            z_tokens=config.z_tokens,
        )
        if target is None:
            return NO_THOUGHT
    else:
        target = encode_reply(
            template,
            step.action,
            tokenizer,
            end_id,
            thought=_thought(step, config),
            loss_tokens=config.trained_tokens,
            z_tokens=config.z_tokens,
        )
    sent = student.sends(target.ids, step.action)
    if config.think_mode not in ("sampled", "full"):
        return target if sent else UNSAYABLE
    well_formed = template.parse(reply_text(tokenizer, target.ids, (end_id,))).format_valid
    return target if sent and well_formed else BAD_THOUGHT


def _thought(step: BranchStep, config: SeroConfig) -> str | None:
    if config.think_mode == "none":
        return None
    if config.think_mode == "template":
        return config.think_text
    if config.think_mode == "full":
        if step.thought is None:
            raise ConfigError(
                f"auxiliary.sero.think_mode=full: the oracle {config.oracle} gave no thought with "
                f"{step.action!r}. Its decisions must carry one (oracles.base.Decision.thought); "
                "or use another think_mode."
            )
        return step.thought
    return ""


def _without_thought(template: PromptTemplate) -> PromptTemplate:
    """The template, not asking for a thought; `compact` never asks for one."""
    if isinstance(template, ChatTemplate):
        inner = template.inner
        plain = replace(inner, think=False) if isinstance(inner, FieldTemplate) else inner
        return replace(template, inner=plain)
    return replace(template, think=False) if isinstance(template, FieldTemplate) else template
