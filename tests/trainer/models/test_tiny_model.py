"""Promises of the tiny policy:

1. Tokenizer and weights depend on their inputs alone, in any process.
2. Global random state stays where it was.
3. What is saved is what is loaded, bit for bit.
4. A prompt of a small household takes 100 to 160 tokens or so, a reply about nine.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
import torch

from agent_envs.prompting import CompactTemplate, History
from trainer.models.tiny import (
    TAGS,
    ModelFolderError,
    TinyConfig,
    build_model,
    load_policy,
    save_policy,
    train_tokenizer,
)
from trainer.rollouts.tokens import decode, encode_prompt, encode_reply, encode_text

SMALL = TinyConfig(hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2)
RECEPTACLES = ["bed 1", "desk 2", "desk 1", "drawer 2", "drawer 1", "shelf 2", "shelf 1", "safe 1"]


def texts() -> list[str]:
    lines = [f"go to {r}" for r in RECEPTACLES] + [f"open {r}" for r in RECEPTACLES]
    lines += [f"take {o} from {r}" for r in RECEPTACLES for o in ("cd 1", "mug 2", "book 1")]
    lines += [f"You arrive at {r}. On the {r}, you see a cd 1, and a mug 2." for r in RECEPTACLES]
    lines.append(
        "You are in the middle of a room. Looking quickly around you, you see "
        + ", ".join(f"a {r}" for r in RECEPTACLES)
        + "."
    )
    return [*lines, "task: put two cd in safe.", "can:", "Nothing happens."] * 2


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts(), 640)


def digest(model) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha.update(name.encode())
        sha.update(value.numpy().tobytes())
    return sha.hexdigest()


def test_same_texts_same_tokenizer_in_another_process(tokenizer):
    code = (
        "import hashlib, json, sys\n"
        "from trainer.models.tiny import train_tokenizer\n"
        "t = train_tokenizer(json.load(sys.stdin), 640).backend_tokenizer.to_str()\n"
        "print(hashlib.sha256(t.encode()).hexdigest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts()),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    own = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    assert out.stdout.strip() == own


def test_tags_end_and_pad_are_single_tokens_that_decoding_keeps(tokenizer):
    for token in (*TAGS, "<end>", "<pad>"):
        assert len(encode_text(tokenizer, token)) == 1
    ids = encode_text(tokenizer, "<think></think><action>look</action><end>")
    tagged = "<think></think><action>look</action>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == tagged
    assert decode(tokenizer, ids) == tagged + "<end>"
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert max(tokenizer.get_vocab().values()) + 1 == len(tokenizer) <= 640


def test_command_has_the_same_tokens_in_the_list_and_in_the_reply(tokenizer):
    listed = encode_text(tokenizer, "can:\ngo to shelf 1\nopen safe 1\n")
    reply = encode_reply(CompactTemplate(), "open safe 1", tokenizer, tokenizer.eos_token_id)
    command = [i for i, z in zip(reply.ids, reply.z_mask, strict=True) if z]
    places = range(len(listed) - len(command) + 1)
    assert any(listed[p : p + len(command)] == command for p in places)


def test_token_counts_of_a_small_household(tokenizer):
    first = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        "around you, you see " + ", ".join(f"a {r}" for r in RECEPTACLES) + ".\n\nYour task is "
        "to: put two cd in safe."
    )
    now = "You arrive at desk 1. On the desk 1, you see a cd 1, and a mug 2."
    history = History().append(first, "go to desk 1", True)
    walks = [f"go to {r}" for r in RECEPTACLES]
    admissible = (*walks, "take cd 1 from desk 1", "take mug 2 from desk 1", "look")
    view = history.view("put two cd in safe.", now, admissible)
    assert 80 <= len(encode_prompt(CompactTemplate(), view, tokenizer)) <= 164
    reply = encode_reply(CompactTemplate(), "go to desk 1", tokenizer, tokenizer.eos_token_id)
    assert len(reply.ids) == 9


def test_vocabulary_bound():
    with pytest.raises(ValueError, match="alone need 262"):
        train_tokenizer(["x"], 261)
    assert len(train_tokenizer(["x y z"], 262)) == 262


def test_default_shape_has_two_thirds_of_a_million_parameters():
    model = build_model(640)
    assert sum(p.numel() for p in model.parameters()) == 673_408
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_depend_on_the_seed_alone_and_move_no_global_state():
    before = torch.get_rng_state()
    model = build_model(50, SMALL, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(123)
    assert digest(build_model(50, SMALL, seed=0)) == digest(model)
    assert digest(build_model(50, SMALL, seed=1)) != digest(model)
    torch.set_rng_state(before)


def test_initial_scale():
    model = build_model(640, TinyConfig(init_std=0.02))
    weights = torch.cat([p.flatten() for p in model.parameters() if p.dim() > 1])
    assert abs(weights.std().item() - 0.02) < 1e-4
    assert abs(weights.mean().item()) < 1e-4
    assert all((p == 1).all() for n, p in model.named_parameters() if "norm" in n)
    assert all((p == 0).all() for n, p in model.named_parameters() if n.endswith("bias"))


def test_saved_policy_is_the_loaded_one(tmp_path, tokenizer):
    model = build_model(
        len(tokenizer), SMALL, seed=5, pad_id=tokenizer.pad_token_id, end_id=tokenizer.eos_token_id
    )
    save_policy(tmp_path, model, tokenizer)
    assert (tmp_path / "model.safetensors").is_file()
    before = torch.get_rng_state()
    loaded, other = load_policy(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert digest(loaded) == digest(model)
    assert not loaded.training
    text = "<think></think><action>go to shelf 1</action><end> dé\n\n x"
    assert encode_text(other, text) == encode_text(tokenizer, text)
    assert decode(other, encode_text(other, text)) == text
    assert (other.eos_token_id, other.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    ids = torch.tensor([[1, 5, 9]])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_folder_without_a_policy_is_named(tmp_path, tokenizer):
    with pytest.raises(ModelFolderError, match=r"config\.json is missing"):
        load_policy(tmp_path)
    save_policy(tmp_path, build_model(len(tokenizer), SMALL), tokenizer)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelFolderError, match="cannot load the policy"):
        load_policy(tmp_path)
