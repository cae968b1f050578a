"""Between text and token ids: prompts, replies, and targets with their masks.

Text becomes ids once, before sampling; sampled ids are never encoded again from text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agent_envs.prompting import PromptTemplate, PromptView
from trainer.config_sections import ConfigError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReplyTarget:
    """A reply that nobody sampled, to be trained on: R tokens.

    Attributes:
        ids: the reply and the end token, (R,).
        loss_mask: command, closing tag and end token, (R,): the policy also learns to stop.
            The empty thought and the opening tag are context, so a reasoning model's
            thoughts are not overwritten.
        z_mask: command only, (R,). Tag tokens have probability near 1 and would inflate a
            length-normalised likelihood.
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
    """Ids of what the template called `name` rendered: see `encode_prompt`."""
    if isinstance(rendered, str):
        return encode_text(tokenizer, rendered)
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"prompt.template={name!r} makes chat messages, but the policy's tokenizer "
            "has no chat template. Give model.path the folder of a chat model, or use "
            "prompt.template=compact."
        )
    ids = tokenizer.apply_chat_template(
        rendered, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(i) for i in ids]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text, no special tokens added."""
    # The backend's call without offsets: three times faster than the wrapper on short texts.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
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


def encode_reply(
    template: PromptTemplate, command: str, tokenizer: Any, end_id: int
) -> ReplyTarget:
    """The reply that sends `command`, as a training target.

    Raises:
        ValueError: an empty command, or a tokenizer without offsets.
    """
    if not command.strip():
        raise ValueError("cannot make a target of an empty command")
    reply = template.format_command(command)
    ids, offsets = encode_with_offsets(tokenizer, reply.text)
    z_mask = span_mask(offsets, [reply.command_span])
    loss_mask = span_mask(offsets, [reply.command_span, reply.closing_span])
    return ReplyTarget((*ids, end_id), (*loss_mask, True), (*z_mask, False))


def command_mask(
    template: PromptTemplate, ids: Sequence[int], tokenizer: Any, stop_ids: Collection[int]
) -> tuple[bool, ...]:
    """Tokens of a *sampled* reply that hold the executed command, (R,).

    Works on the ids as they were drawn: growing prefixes are decoded, because encoding the
    text again may give other ids. Stop tokens hold no characters.
    """
    body = strip_stop(ids, stop_ids)
    text = decode(tokenizer, body)
    span = template.parse(text).command_span
    if span is None:
        return (False,) * len(ids)
    ends = [len(decode(tokenizer, body[: i + 1])) for i in range(len(body))]
    offsets = list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []
    return span_mask(offsets, [span]) + (False,) * (len(ids) - len(body))


def reply_text(tokenizer: Any, ids: Sequence[int], stop_ids: Collection[int]) -> str:
    """Text of a sampled reply, without the end token, tags kept."""
    return decode(tokenizer, strip_stop(ids, stop_ids))


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
