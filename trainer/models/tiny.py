"""A tiny policy for a CPU: Qwen2 architecture and a tokenizer learnt from environment text.

At the default size it has 0.67 million parameters and about 640 tokens; with the `compact`
prompt a turn is 100 to 160 tokens and a reply about 8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from agent_envs.errors import SeroError
from trainer.config.sections import SMALLEST_VOCABULARY
from trainer.runs.manifest import MANIFEST, check_policy_files, policy_files, write_manifest

PAD_TOKEN = "<pad>"
END_TOKEN = "<end>"
TAGS = ("<think>", "</think>", "<action>", "</action>")


class ModelFolderError(SeroError):
    """A folder that holds no loadable model and tokenizer; names the folder and the cause."""


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Shape of the model. The defaults are ours."""

    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    max_positions: int = 1024
    init_std: float = 0.02


def train_tokenizer(texts: Iterable[str], vocab_size: int = 640) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts`; the same texts give the same tokenizer.

    The four reply tags are single tokens, and so are `<end>` and `<pad>`. Tags are ordinary
    added tokens, not special ones: decoding with `skip_special_tokens=True` must keep them,
    or no reply would have a command. Every byte has a token, so any text can be encoded.

    Args:
        texts: prompts and replies as the policy will see them.
        vocab_size: upper bound; a small text is exhausted earlier.

    Raises:
        ValueError: `vocab_size` has no room for bytes and tags.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size is {vocab_size}; bytes and tags alone need {SMALLEST_VOCABULARY}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=[PAD_TOKEN, END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Tags inside the texts would otherwise become merges of their own spelling.
    tokenizer.train_from_iterator((_without_tags(text) for text in texts), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=END_TOKEN,
        clean_up_tokenization_spaces=False,
    )


def build_model(
    vocab_size: int,
    config: TinyConfig | None = None,
    *,
    seed: int = 0,
    pad_id: int | None = None,
    end_id: int | None = None,
) -> Qwen2ForCausalLM:
    """A fresh model whose weights depend on `seed` alone.

    Matrices are normal with `init_std`, biases 0, norms 1. The global random state of torch
    is the same afterwards.
    """
    shape = TinyConfig() if config is None else config
    qwen = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=pad_id,
        bos_token_id=None,
        eos_token_id=end_id,
    )
    # Constructors of torch modules draw from the global generator; its state is put back.
    with torch.random.fork_rng(devices=[]):
        model = Qwen2ForCausalLM(qwen)
    initialise(model, seed=seed, std=shape.init_std)
    return model.eval()


def initialise(model: nn.Module, *, seed: int, std: float) -> None:
    """Fill all parameters from an explicit generator, in the order of their names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def save_policy(
    folder: str | Path, model: Any, tokenizer: Any, *, with_manifest: bool = False
) -> None:
    """Write weights (safetensors), config and tokenizer into `folder`.

    Args:
        with_manifest: and a hash of each file. `load_policy` compares them, so a file that is
            damaged or edited later is not taken for the policy.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / MANIFEST).unlink(missing_ok=True)
    with _no_progress_bar():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if with_manifest:
        write_manifest(path, policy_files(path))


def load_policy(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, verified: bool = False
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Read a policy written by `save_policy`, or any local causal model; nothing is downloaded.

    Args:
        verified: its files have just been compared with its manifest, as `load_checkpoint` does.

    Raises:
        ModelFolderError: the folder or one of its files is missing or unreadable.
        CheckpointError: a file is not as its manifest says; a folder without one has no say.
    """
    from transformers import AutoModelForCausalLM

    path = Path(folder)
    if not verified and path.is_dir():
        check_policy_files(path)
    check_policy_folder(path)
    try:
        with torch.random.fork_rng(devices=[]), _no_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, local_files_only=True, use_safetensors=True
            )
        tokenizer = _tokenizer_class(path).from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelFolderError(f"cannot load the policy in {path}: {error}") from error
    return model.eval(), tokenizer


def check_policy_folder(folder: str | Path, field: str | None = None) -> None:
    """Raises `ModelFolderError` where a folder lacks a file that every policy has.

    Args:
        field: of the config that names the folder, for the message.
    """
    path = Path(folder)
    for name in ("config.json", "tokenizer_config.json"):
        if not (path / name).is_file():
            lead = "" if field is None else f"{field}={folder}: "
            raise ModelFolderError(
                f"{lead}{path} holds no policy: {name} is missing. Give a folder with a model, its "
                "config and its tokenizer."
            )


def _tokenizer_class(path: Path) -> Any:
    """The class that reads `tokenizer.json` as it was saved.

    `AutoTokenizer` goes by the model type: for a Qwen2 model it puts Qwen2's own word
    splitting in place of ours, and the same text gets other ids.
    """
    from transformers import AutoTokenizer

    name = json.loads((path / "tokenizer_config.json").read_text("utf-8")).get("tokenizer_class")
    generic = name in ("PreTrainedTokenizerFast", "TokenizersBackend")
    return PreTrainedTokenizerFast if generic else AutoTokenizer


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws a bar for each file, which would break a run's own display."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without_tags(text: str) -> str:
    for tag in TAGS:
        text = text.replace(tag, " ")
    return text
