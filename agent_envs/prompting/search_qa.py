"""Search-QA replies: projection to an action, and exact-match scoring. No environment is built.

A reply thinks, then gives one of ``<search>query</search>`` and ``<answer>text</answer>``
(Search-R1, arXiv:2503.09516; the agent port of it in the published runs).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

# ASCII only: full Unicode case folding would also accept a long s in a tag.
_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_BLOCK = {kind: re.compile(rf"<{kind}>(.*?)</{kind}>", _FLAGS) for kind in ("search", "answer")}
_OPEN = {kind: re.compile(rf"<{kind}>", _FLAGS) for kind in ("search", "answer")}
_CLOSE = {kind: re.compile(rf"</{kind}>", _FLAGS) for kind in ("search", "answer")}
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def qa_project(reply: str) -> tuple[str, bool]:
    """Project a reply to the action that is executed, and whether its form is right.

    The reply is cut after the first ``</search>``, or, if it has none, after the first
    ``</answer>``. In what is left the first search block is the action, else the first answer
    block, with its text stripped: a search wins also over an answer before it. Without a block
    the action is empty.

    Malformed are: no action, opening tags of both kinds, or two of one kind, counted in the
    whole reply. The action is executed all the same.

    Returns:
        `(action, format_valid)`; the action in lower-case tags, or "".

    >>> qa_project("<think>who?</think><search> Ada Lovelace </search>")
    ('<search>Ada Lovelace</search>', True)
    """
    searches, answers = (len(_OPEN[kind].findall(reply)) for kind in ("search", "answer"))
    cut = _CLOSE["search"].search(reply) or _CLOSE["answer"].search(reply)
    kept = reply if cut is None else reply[: cut.end()]
    for kind in ("search", "answer"):
        block = _BLOCK[kind].search(kept)
        if block is not None:
            action = f"<{kind}>{block.group(1).strip()}</{kind}>"
            return action, searches + answers == 1
    return "", False


def final_answer(reply: str) -> str | None:
    """Text of the last ``<answer>`` block of a reply, stripped; None without one.

    Give it the assistant's final message only. Published code reads the concatenated history, in
    which a retrieved passage with an answer tag can overrule the reply.
    """
    blocks = _BLOCK["answer"].findall(reply)
    return blocks[-1].strip() if blocks else None


def normalise_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single spaces.

    In this order, so "co-op" becomes "coop" and "The U.S." becomes "us". Accents are kept.

    >>> normalise_answer("The  Co-op, an Apple")
    'coop apple'
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def exact_match(answer: str, golds: str | Sequence[str]) -> bool:
    """Whether an answer equals any gold answer after `normalise_answer`."""
    accepted = [golds] if isinstance(golds, str) else golds
    return normalise_answer(answer) in {normalise_answer(gold) for gold in accepted}


def qa_reward(reply: str, golds: str | Sequence[str]) -> float:
    """1.0 if the reply's `final_answer` is an exact match, else 0.0; also without an answer.

    Args:
        reply: the assistant's final message.
        golds: one or several accepted answers.
    """
    answer = final_answer(reply)
    return 1.0 if answer is not None and exact_match(answer, golds) else 0.0


def dataset_means(scores: Mapping[str, Sequence[float]]) -> tuple[dict[str, float], float]:
    """Exact match of each data set, and their unweighted mean, the figure that is published.

    Args:
        scores: rewards of the questions of each data set.

    Returns:
        `(mean of each, mean of these means)`.

    Raises:
        ValueError: no data set, or one without questions.
    """
    empty = [name for name, values in scores.items() if not values]
    if empty or not scores:
        raise ValueError(f"Every data set needs at least one question; without any: {empty}.")
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    return means, sum(means.values()) / len(means)
