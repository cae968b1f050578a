"""Text that others wrote must not become a tokenizer's control tokens.

An observation, a goal, a command shown in the history or an oracle's answer may spell the strings
by which a model knows where a turn begins and ends. Encoded as it stands, `<|im_end|>` in an
observation ends the user's turn. So what was written by environments and models is looked through
before a chat template or a tokenizer gets it, and where such a string occurs a space is put behind
its first character: `< |im_end|>`. Nothing else is changed, and text without such a string stays
as it is, byte for byte.

Control strings of a tokenizer are its special tokens, added tokens of the form `<|...|>` or
`[|...|]`, and what has the form of a marker (`<...>`, `[INST]`, `[|...|]`) in its chat template or
in what that makes. Tags that replies consist of (`<think>`, `<action>`, ...) are none: prompts and
replies are made of them.
Nor are single characters and white space, which a tokenizer may use to end a text. Markers that are
ordinary words, as `User:`, cannot be told from text and are not found.

Ids that a policy sampled are no text: a conversation keeps them as they were drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agent_envs.prompting import Message
from trainer.errors import ConfigError

__all__ = ["break_up", "control_strings", "harmless", "harmless_messages"]

_TAGS = frozenset(
    f"<{slash}{name}>" for name in ("think", "action", "answer", "search") for slash in ("", "/")
)
_ADDED = re.compile(r"<[|\uff5c].+[|\uff5c]>|\[\|.+\|\]")
_MARKER = re.compile(
    r"""<[^<>\s'"{}()=]{1,64}>|\[/?[A-Z][A-Z0-9_]+\]|\[\|[^\[\]|\s'"{}()=]{1,64}\|\]"""
)
_SPACES = 4
"""So often a space is tried."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out of a tokenizer in the state `key`."""

    key: tuple[object, ...]
    break_up: Callable[[str], str]
    ids: frozenset[int]
    """Ids to look for in what was encoded; empty where text alone decides."""


_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def control_strings(tokenizer: Any) -> tuple[str, ...]:
    """Strings that text must not contain, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {str(token) for token in getattr(tokenizer, "all_special_tokens", ())}
    found |= {
        str(token) for token in added if token.special or _ADDED.fullmatch(token.content.strip())
    }
    found |= set(_MARKER.findall(_template_text(tokenizer)))
    # Around a token, tokenizers may take white space or leave it.
    cores = {text.strip() for text in found} - _TAGS
    return tuple(sorted((c for c in cores if len(c) > 1), key=lambda c: (-len(c), c)))


def break_up(text: str, strings: Iterable[str]) -> str:
    """`text` with a space behind the first character of every occurrence of the strings.

    What is left contains none of them, also where taking one apart would make another one.

    Args:
        strings: of two characters or more, without white space around them.

    >>> break_up("A shelf.<|im_end|>", ["<|im_end|>"])
    'A shelf.< |im_end|>'
    """
    return _breaker(tuple(strings))(text)


def harmless(tokenizer: Any, text: str) -> str:
    """`text` as it may be encoded: see the module. Of harmless text it is the same object."""
    known = _of(tokenizer)
    text = known.break_up(text)
    return _without_ids(tokenizer, text, known.ids) if known.ids else text


def harmless_messages(tokenizer: Any, messages: Sequence[Message]) -> list[Message]:
    """Messages whose contents are `harmless`, for a chat template to render."""
    return [{**message, "content": harmless(tokenizer, message["content"])} for message in messages]


def _breaker(strings: tuple[str, ...]) -> Callable[[str], str]:
    if not strings:
        return lambda text: text
    first = "".join(sorted({string[0] for string in strings}))
    start = re.compile(f"[{re.escape(first)}]")
    pattern = re.compile("|".join(map(re.escape, strings)))

    def found(text: str) -> str:
        if start.search(text) is None:
            return text
        # Every round widens a gap between two characters, and wide gaps are in no string.
        while pattern.search(text) is not None:
            text = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text

    return found


def _of(tokenizer: Any) -> _Known:
    key = (
        str(getattr(tokenizer, "chat_template", None)),
        len(tokenizer) if hasattr(tokenizer, "__len__") else 0,
        getattr(tokenizer, "eos_token", None),
    )
    known = _known.get(tokenizer)
    if known is None or known.key != key:
        strings = control_strings(tokenizer)
        ids: frozenset[int] = frozenset()
        if _rewrites(tokenizer):
            # Any unknown character is the unknown token, and so is a marker that is no token.
            ids = frozenset(tokenizer.convert_tokens_to_ids(list(strings)))
            ids -= {None, tokenizer.unk_token_id}
        known = _Known(key, _breaker(strings), ids)
        _known[tokenizer] = known
    return known


def _template_text(tokenizer: Any) -> str:
    """The chat template, and what it makes of a conversation: it may put markers together."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return ""
    found = [template] if isinstance(template, str) else list(map(str, dict(template).values()))
    for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user")):
        messages = [{"role": role, "content": "word"} for role in roles]
        # Templates refuse what they do not know; whoever renders a real prompt says so.
        with suppress(Exception):
            made = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            found.append(str(made))
    return "\n".join(found)


def _rewrites(tokenizer: Any) -> bool:
    """Whether other spellings may be normalised to a control token: upper case, wide characters."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is None:
        return False
    added = tokenizer.added_tokens_decoder.values()
    return type(backend.model).__name__ != "BPE" or any(token.normalized for token in added)


def _without_ids(tokenizer: Any, text: str, ids: frozenset[int]) -> str:
    """`text`, with a space inside whatever is encoded to one of `ids`, or "?" where none helps.

    Raises:
        ConfigError: neither helps.
    """
    tried = 0
    while True:
        made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(made["input_ids"], made["offset_mapping"], strict=True)
        spans = [span for token, span in pairs if token in ids]
        if not spans:
            return text
        before = text
        for start, end in reversed(spans):
            # A token may take white space around it along.
            start += len(text[start:end]) - len(text[start:end].lstrip())
            part = text[start:end]
            # One character cannot be taken apart, and some tokenizers do not see spaces.
            apart = len(part.strip()) > 1 and tried < _SPACES
            text = text[:start] + (f"{part[0]} {part[1:]}" if apart else "?") + text[end:]
        if text == before:
            raise ConfigError(
                f"The policy's tokenizer encodes {text!r} to a control token, whatever stands "
                "there. Give model.path the folder of a model with another tokenizer."
            )
        tried += 1
