"""Between text and token ids: prompts, replies, and targets with their masks.

Text becomes ids once, before sampling; sampled ids are never encoded again from text. No text
becomes a control token of the tokenizer (`trainer.rollouts.control_tokens`); only what a chat
template puts around it does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent_envs.prompting import FormattedReply, PromptTemplate, PromptView
from trainer.errors import ConfigError
from trainer.rollouts.control_tokens import harmless, harmless_messages

Span = tuple[int, int]
TokenSet = Literal["command", "command_closing", "after_think", "all"]
"""Tokens of a target: those of the command; these, its closing tag and the end token; all behind
the thought; all."""

_NO_THOUGHT = "<think></think>"
_THOUGHT_END = "</think>"


@dataclass(frozen=True, slots=True)
class ReplyTarget:
    """A reply that nobody sampled, to be trained on: R tokens.

    Attributes:
        ids: the reply and the end token, (R,).
        loss_mask: command, closing tag and end token, (R,), unless asked otherwise: the policy
            also learns to stop. The empty thought and the opening tag are context, so a
            reasoning model's thoughts are not overwritten.
        z_mask: command only, (R,), unless asked otherwise. Tag tokens have probability near 1
            and would inflate a length-normalised likelihood.
    """

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    z_mask: tuple[bool, ...]


def encode_prompt(template: PromptTemplate, view: PromptView, tokenizer: Any) -> list[int]:
    """Render a view and encode it.

    Chat messages go through the tokenizer's own chat template, with the header that opens
    the assistant's turn; plain text is encoded as it is, without special tokens.

    Raises:
        ConfigError: chat messages for a tokenizer without a chat template.
    """
    return encode_rendered(template.render(view), tokenizer, template.name)


def encode_rendered(rendered: Any, tokenizer: Any, name: str) -> list[int]:
    """Ids of what the template called `name` rendered, or of any text: see `encode_prompt`.

    What it says becomes no control token, see `trainer.rollouts.control_tokens`.
    """
    if isinstance(rendered, str):
        return encode_text(tokenizer, harmless(tokenizer, rendered))
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"prompt.template={name!r} makes chat messages, but the policy's tokenizer "
            "has no chat template. Give model.path the folder of a chat model, or use "
            "prompt.template=compact."
        )
    ids = tokenizer.apply_chat_template(
        harmless_messages(tokenizer, rendered),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    return [int(i) for i in ids]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text, no special tokens added; those that it spells are read, as in what a chat
    template made. What others wrote goes through `encode_rendered`."""
    # The backend's call without offsets: three times faster than the wrapper on short texts.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # It keeps the settings of its file or of the last call: they would cut or fill up the ids.
        if backend.truncation is not None:
            backend.no_truncation()
        if backend.padding is not None:
            backend.no_padding()
        return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
    return list(tokenizer.encode(text, add_special_tokens=False))


def encode_with_offsets(tokenizer: Any, text: str) -> tuple[list[int], list[Span]]:
    """Ids and the characters each one covers, end exclusive.

    Raises:
        ValueError: the tokenizer knows no offsets (a slow tokenizer).
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"{type(tokenizer).__name__} has no offset mapping; masks need a fast tokenizer"
        )
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(encoded["input_ids"]), [(int(a), int(b)) for a, b in encoded["offset_mapping"]]


def span_mask(offsets: Sequence[Span], spans: Sequence[Span]) -> tuple[bool, ...]:
    """Which tokens overlap any span.

    A token that straddles a border counts; a token without characters never does.

    >>> span_mask([(0, 7), (7, 11), (11, 11)], [(6, 9)])
    (True, True, False)
    """
    return tuple(
        start < end and any(start < b and end > a for a, b in spans if a < b)
        for start, end in offsets
    )


def prefix_offsets(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Span]:
    """Characters of each token by decoding growing prefixes, where no offset mapping exists.

    A character whose bytes are spread over several tokens belongs to each of them: a prefix that
    ends inside it decodes to a replacement character, which is not yet the text.

    Args:
        ids: tokens of the reply.
        decode: text of ids, nothing skipped and nothing tidied up.

    Returns:
        (start, end) of each token in `decode(ids)`, end exclusive.
    """
    text = decode(ids)
    offsets: list[Span] = []
    start = 0
    for count in range(1, len(ids) + 1):
        prefix = decode(ids[:count])
        agreed = _common_length(prefix, text, start)
        unfinished = agreed < len(prefix)
        offsets.append((start, min(agreed + unfinished, len(text))))
        start = agreed
    return offsets


def encode_reply(
    template: PromptTemplate,
    command: str,
    tokenizer: Any,
    end_id: int,
    *,
    thought: str | None = "",
    loss_tokens: TokenSet = "command_closing",
    z_tokens: TokenSet = "command",
) -> ReplyTarget:
    """The reply that sends `command`, as a training target.

    Args:
        thought: what stands between the tags of the thought; None: neither tags nor thought.
        loss_tokens, z_tokens: which tokens each mask covers.

    Raises:
        ValueError: an empty command, a tokenizer without offsets, or a thought in a template
            whose reply does not begin with an empty one.
    """
    reply = _reply_to(template, harmless(tokenizer, command))
    if thought != "":
        head = f"<think>{harmless(tokenizer, thought)}{_THOUGHT_END}" if thought is not None else ""
        reply = _behind(head, _without_thought(reply))
    ids, offsets = encode_with_offsets(tokenizer, reply.text)
    end = reply.text.rfind(_THOUGHT_END, 0, reply.command_span[0])
    behind = 0 if end < 0 else end + len(_THOUGHT_END)
    masks = (_token_set(reply, behind, offsets, which) for which in (loss_tokens, z_tokens))
    return ReplyTarget((*ids, end_id), *masks)


def force_command(
    template: PromptTemplate,
    command: str,
    sampled_ids: Sequence[int],
    tokenizer: Any,
    stop_ids: Collection[int],
    end_id: int,
    *,
    loss_tokens: TokenSet = "command_closing",
    z_tokens: TokenSet = "command",
) -> ReplyTarget | None:
    """A sampled reply up to the end of its thought, and from there the one that sends `command`.

    The thought keeps its ids as they were drawn. Where its last token reaches into what follows,
    that token makes way for the characters of it that belong to the thought.

    Args:
        sampled_ids: a reply, with or without its stop token.
        loss_tokens, z_tokens: which tokens each mask covers.

    Returns:
        None where the reply ends no thought.

    Raises:
        ValueError: see `encode_reply`.
    """
    reply = _without_thought(_reply_to(template, harmless(tokenizer, command)))
    thought = sampled_thought(tokenizer, sampled_ids, stop_ids)
    if thought is None:
        return None
    body = strip_stop(sampled_ids, stop_ids)
    lengths = range(len(body) + 1)
    kept = bisect_right(lengths, len(thought), key=lambda n: len(decode(tokenizer, body[:n]))) - 1
    # A prefix that ends inside a character decodes to something that is not in the text.
    while not thought.startswith(decode(tokenizer, body[:kept])):
        kept -= 1
    rest = thought[len(decode(tokenizer, body[:kept])) :]
    reply = _behind(rest, reply)
    ids, offsets = encode_with_offsets(tokenizer, reply.text)
    masks = (
        (which == "all",) * kept + _token_set(reply, len(rest), offsets, which)
        for which in (loss_tokens, z_tokens)
    )
    return ReplyTarget((*body[:kept], *ids, end_id), *masks)


def sampled_thought(
    tokenizer: Any, sampled_ids: Sequence[int], stop_ids: Collection[int]
) -> str | None:
    """Text of a sampled reply up to the end of its first thought; None where it ends none."""
    text = reply_text(tokenizer, sampled_ids, stop_ids)
    end = text.find(_THOUGHT_END)
    return None if end < 0 else text[: end + len(_THOUGHT_END)]


def _reply_to(template: PromptTemplate, command: str) -> FormattedReply:
    if not command.strip():
        raise ValueError("cannot make a target of an empty command")
    return template.format_command(command)


def _without_thought(reply: FormattedReply) -> FormattedReply:
    if not reply.text.startswith(_NO_THOUGHT):
        raise ValueError(
            f"the template's reply {reply.text!r} does not begin with {_NO_THOUGHT!r}, so no other "
            "thought can take its place"
        )
    cut = replace(reply, text=reply.text[len(_NO_THOUGHT) :])
    return _moved(cut, -len(_NO_THOUGHT))


def _behind(head: str, reply: FormattedReply) -> FormattedReply:
    return _moved(replace(reply, text=head + reply.text), len(head))


def _moved(reply: FormattedReply, by: int) -> FormattedReply:
    spans = [(start + by, end + by) for start, end in (reply.command_span, reply.closing_span)]
    return replace(reply, command_span=spans[0], closing_span=spans[1])


def _token_set(
    reply: FormattedReply, behind: int, offsets: Sequence[Span], which: TokenSet
) -> tuple[bool, ...]:
    """Mask of a reply's tokens and of the end token; its thought ends before `behind`."""
    size = len(reply.text)
    spans = {
        "command": [reply.command_span],
        "command_closing": [reply.command_span, reply.closing_span],
        "after_think": [(behind, size)],
        "all": [(0, size)],
    }
    return (*span_mask(offsets, spans[which]), which != "command")


def command_mask(
    template: PromptTemplate, ids: Sequence[int], tokenizer: Any, stop_ids: Collection[int]
) -> tuple[bool, ...]:
    """Tokens of a *sampled* reply that hold the executed command, (R,).

    Works on the ids as they were drawn: growing prefixes are decoded, because encoding the
    text again may give other ids. A token that holds a part of a character holds it like the
    others that do. Stop tokens hold no characters.
    """
    body = strip_stop(ids, stop_ids)
    text = decode(tokenizer, body)
    span = template.parse(text).command_span
    if span is None:
        return (False,) * len(ids)
    offsets = prefix_offsets(body, lambda some: decode(tokenizer, some))
    return span_mask(offsets, [span]) + (False,) * (len(ids) - len(body))


def reply_text(tokenizer: Any, ids: Sequence[int], stop_ids: Collection[int]) -> str:
    """Text of a sampled reply, without the end token, tags kept."""
    return decode(tokenizer, strip_stop(ids, stop_ids))


def sends(
    template: PromptTemplate, ids: Sequence[int], tokenizer: Any, end_id: int, command: str
) -> bool:
    """Whether a target, read as a reply is, sends `command`.

    Not one that spells a control token or a tag, nor one that the tokenizer does not keep.
    """
    parsed = template.parse(reply_text(tokenizer, ids, (end_id,)))
    return parsed.command == command.strip().lower()


def strip_stop(ids: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    """Drop one trailing stop token, if there is one."""
    body = list(ids)
    if body and body[-1] in stop_ids:
        body.pop()
    return body


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of ids, nothing skipped and nothing tidied up."""
    text = tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return str(text)


def end_of_turn(tokenizer: Any, stop_ids: Collection[int]) -> int | None:
    """The token that the chat template puts behind a reply, if it is one that ends replies.

    None where there is no template, or it puts something else there.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    reply = "zinn eins"
    talk = [{"role": "user", "content": "kupfer eins"}, {"role": "assistant", "content": reply}]
    text = ""
    with suppress(Exception):  # who renders a real prompt says what is wrong
        text = tokenizer.apply_chat_template(talk, tokenize=False)
    if not isinstance(text, str) or reply not in text:
        return None
    behind = encode_text(tokenizer, text[text.rindex(reply) + len(reply) :])
    return behind[0] if behind and behind[0] in stop_ids else None


def stop_ids_of(tokenizer: Any, model: Any = None) -> tuple[int, ...]:
    """End tokens: the tokenizer's, and those of the model's generation config.

    Raises:
        ValueError: there is none.
    """
    found: list[int] = []
    if tokenizer.eos_token_id is not None:
        found.append(int(tokenizer.eos_token_id))
    config = getattr(model, "generation_config", None)
    extra = getattr(config, "eos_token_id", None)
    if extra is not None:
        found += [int(i) for i in (extra if isinstance(extra, (list, tuple)) else [extra])]
    if not found:
        raise ValueError("neither the tokenizer nor the model's generation config has an end token")
    return tuple(dict.fromkeys(found))


def _common_length(prefix: str, text: str, start: int) -> int:
    """Length of the common beginning, at least `start` characters of which are known to agree."""
    length = min(start, len(prefix), len(text))
    while length < min(len(prefix), len(text)) and prefix[length] == text[length]:
        length += 1
    return length
