"""What a pass costs, before it is run: floating-point operations and bytes. Pure, no torch.

Of decoders with gated MLPs and full causal attention (Qwen2, Llama and their like).

Letters: H hidden size, Q heads x head size, K key-value heads x head size, I MLP size,
V vocabulary, L length of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

from agent_envs.errors import SeroError

__all__ = [
    "AccountingError",
    "Memory",
    "ModelShape",
    "Work",
    "flops_of",
    "largest_micro_batch",
    "memory_of",
    "mfu",
    "peak_flops",
    "performance",
    "shape_of",
]

Optimizer = Literal["adamw", "adafactor", "adamw_8bit", "sgd"]

HEAD_CHUNK = 1 << 26
"""Logits that exist at a time (see `trainer.models.policy`)."""

# What configs call the number of their experts: Qwen's, Mixtral's, DeepSeek's.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

# Bytes a logit: as the head gives it, in float32, scaled, and a gradient of each.
_LOGIT_BYTES = 20


class AccountingError(SeroError, ValueError):
    """A model whose cost is not known here."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder. `bias`: queries, keys and values have one."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = True
    bias: bool = False

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Weights of one layer's matrices: 2 H Q + 2 H K + 3 H I."""
        return self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)

    @property
    def matrices(self) -> int:
        """Weights of all layers' matrices: what is multiplied at every token."""
        return self.layers * self.layer_matrices

    @property
    def parameters(self) -> int:
        """All of them: embedding, head unless it is the embedding, matrices, biases, norms."""
        biases = (self.queries + 2 * self.keys) * self.bias
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        norms = self.hidden * (2 * self.layers + 1)
        return tables + self.matrices + self.layers * biases + norms

    def adapters(self, rank: int) -> int:
        """Parameters of adapters of this rank on every matrix of every layer."""
        sides = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        return self.layers * rank * (sides + 3 * (self.hidden + self.intermediate))


def shape_of(config: Any) -> ModelShape:
    """Sizes from a transformers config, or from anything with its fields.

    Raises:
        AccountingError: it is no decoder of this kind.
    """
    kind = str(getattr(config, "model_type", ""))
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    missing = [name for name in (*names, "vocab_size") if not hasattr(config, name)]
    experts = any(hasattr(config, name) for name in _EXPERTS)
    gated = getattr(config, "hidden_act", None) == "silu" and not experts
    if missing or not gated:
        raise AccountingError(
            f"The cost of model type {kind or type(config).__name__!r} is not known: expected "
            f"{'fields ' + ', '.join(missing) if missing else 'one gated MLP (silu) a layer'}."
        )
    heads = int(config.num_attention_heads)
    return ModelShape(
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        intermediate=int(config.intermediate_size),
        vocab=int(config.vocab_size),
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        bias=kind == "qwen2" or bool(getattr(config, "attention_bias", False)),
    )


# ---------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class Work:
    """What passes have run over; adds up.

    Attributes:
        tokens: of all sequences, without padding, shared prefixes once.
        pairs: (query, key) pairs of causal attention, the sum of L (L + 1) / 2 and, where S
            tokens before them are shared, of L S.
        trained: tokens whose log-prob was wanted, so that the head was run before them.
    """

    tokens: int = 0
    pairs: int = 0
    trained: int = 0

    @classmethod
    def of(cls, lengths: Iterable[int], trained: int, shared: Iterable[int] | None = None) -> Work:
        """Of sequences of these lengths.

        Args:
            shared: tokens before each that another sequence has run; `lengths` is without them.
        """
        sizes = list(lengths)
        before = [0] * len(sizes) if shared is None else list(shared)
        pairs = sum(n * (n + 1) // 2 + n * s for n, s in zip(sizes, before, strict=True))
        return cls(sum(sizes), pairs, trained)

    def __add__(self, other: Work) -> Work:
        return Work(
            self.tokens + other.tokens, self.pairs + other.pairs, self.trained + other.trained
        )


def flops_of(
    shape: ModelShape, work: Work, *, backward: bool = True, frozen: bool = False
) -> float:
    """Model FLOPs of passes over `work`: a multiplication and an addition are two.

    Forward: 2 x matrices a token, 2 H V a trained token, and for attention 4 Q a layer and pair
    (query times key, weight times value). This is the count of PaLM (arXiv:2204.02311, appendix B)
    with two differences: attention is causal, half of the pairs, and the head runs where a token
    is trained only. Norms, activations and the rotation are left out, as there.

    Backward: twice the forward, for inputs and for weights. With `frozen` weights (adapters) once;
    the adapters themselves are left out. What is recomputed is no model FLOP.
    """
    dense = 2.0 * shape.matrices * work.tokens + 2.0 * shape.hidden * shape.vocab * work.trained
    attention = 4.0 * shape.queries * shape.layers * work.pairs
    if not backward:
        return dense + attention
    return (2.0 if frozen else 3.0) * dense + 3.0 * attention


# Dense bfloat16 FLOP/s with accumulation in float32, from the makers' data sheets and architecture
# white papers; where those give the number with 2:4 sparsity, half of it. The first row whose words
# are all in a device's name counts. Names as the driver gives them.
_PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250e12),
    ("H200 NVL", 835.5e12),
    ("H200", 989.4e12),
    ("GH200", 989.4e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835.5e12),
    ("H100", 989.4e12),
    ("H800 PCIe", 756e12),
    ("H800", 989.4e12),
    ("H20", 148e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("RTX 6000 Ada", 364.2e12),
    ("RTX A6000", 154.8e12),
    ("RTX 5090", 209.5e12),
    ("RTX 4090", 165.2e12),
    ("RTX 4080", 97.5e12),
    ("RTX 3090", 71e12),
    ("MI300X", 1307.4e12),
    ("MI250X", 191.5e12),  # of one of its two chips, each of which is a device to the driver
)
# A slice, a slower chip of the same name, or one that is held to less power.
_OTHERS = frozenset(("mig", "laptop", "d", "max", "super", "ti"))


def peak_flops(device: str) -> float | None:
    """Dense bfloat16 FLOP/s of a GPU by its name; None where it is not known."""
    words = set(device.lower().replace("-", " ").split())
    if words & _OTHERS:
        return None
    for name, peak in _PEAKS:
        if words >= set(name.lower().split()):
            return peak
    return None


def mfu(flops: float, seconds: float, peak: float | None, devices: int = 1) -> float | None:
    """Model FLOPs over what the devices could have done in that time; None if unknown."""
    if peak is None or seconds <= 0:
        return None
    return flops / (seconds * peak * devices)


def performance(
    shape: ModelShape | None,
    work: Work,
    seconds: float,
    device: str = "",
    *,
    devices: int = 1,
    frozen: bool = False,
) -> dict[str, float | None]:
    """Metrics of an update: `perf/tokens_per_s`, `perf/model_flops`, `perf/mfu`.

    Args:
        shape: None where it is not known (`shape_of` raised).
        work: of the update's training passes.
        device: name of the GPU; anything else has no `perf/mfu`.
    """
    flops = None if shape is None else flops_of(shape, work, frozen=frozen)
    return {
        "perf/tokens_per_s": work.tokens / seconds if seconds > 0 else None,
        "perf/model_flops": flops,
        "perf/mfu": None if flops is None else mfu(flops, seconds, peak_flops(device), devices),
    }


# --------------------------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device while an update runs, at its highest.

    Attributes:
        weights: of the policy, float32.
        copies: what else is held: the rounded policy that acts, a reference.
        gradients, moments: of what is trained.
        rounded: bfloat16 copies of the weights that a pass makes and keeps.
        activations: kept of one micro-batch for its backward.
        one_layer: what the backward recomputes at a time, with checkpointing.
        logits: of one piece of the head, with its gradients.
    """

    weights: int
    copies: int
    gradients: int
    moments: int
    rounded: int
    activations: int
    one_layer: int
    logits: int

    @property
    def total(self) -> int:
        return sum(int(getattr(self, f.name)) for f in fields(self))


def memory_of(
    shape: ModelShape,
    tokens: int,
    trained: int,
    *,
    bf16: bool = True,
    optimizer: Optimizer = "adamw",
    checkpointing: bool = False,
    lora_rank: int = 0,
    reference: bool = False,
    both_gradients: bool = False,
    kernel_attention: bool = True,
    longest: int = 0,
) -> Memory:
    """Bytes of an update whose micro-batches run `tokens` tokens, padding included.

    The caching allocator of torch and the driver take more: leave a tenth of the device free.

    Args:
        trained: trained tokens of one micro-batch.
        bf16: `run.dtype: bfloat16`, passes in bfloat16 over float32 weights.
        checkpointing: `optim.gradient_checkpointing`.
        lora_rank: 0: all weights are trained. The reference then costs nothing.
        reference: a KL term.
        both_gradients: gradients of base and auxiliary are kept apart (`measure_gradients`).
        kernel_attention: sdpa or flash; else scores of tokens x `longest` are kept.
        longest: length of the longest sequence, read without `kernel_attention` only.
    """
    weights = shape.parameters
    adapters = shape.adapters(lora_rank)
    in_training = adapters if lora_rank else weights
    copies = 2 * (weights + adapters) if bf16 else 0
    if reference and not lora_rank:
        copies += (2 if bf16 else 4) * weights
    per_layer = _layer_bytes(shape, bf16)
    if not kernel_attention:
        per_layer += 2 * (2 if bf16 else 4) * shape.heads * longest
    # The final norm, and hidden states of trained tokens.
    rest = 8 * shape.hidden * tokens + 4 * shape.hidden * trained
    kept = 4 * shape.hidden if checkpointing else per_layer
    return Memory(
        weights=4 * (weights + adapters),
        copies=copies,
        gradients=4 * in_training * (2 if both_gradients else 1),
        moments=_moment_bytes(shape, optimizer, lora_rank),
        rounded=2 * (shape.matrices + shape.hidden * shape.vocab) if bf16 else 0,
        activations=kept * shape.layers * tokens + rest,
        one_layer=per_layer * tokens if checkpointing else 0,
        logits=_LOGIT_BYTES * min(max(trained, 1) * shape.vocab, HEAD_CHUNK),
    )


def largest_micro_batch(shape: ModelShape, budget: int, *, trained_share: float, **how: Any) -> int:
    """The largest `optim.micro_batch_tokens` whose update stays within `budget` bytes; 0: none.

    Args:
        trained_share: trained tokens over tokens, 0 to 1.
        how: as for `memory_of`.
    """

    def fits(tokens: int) -> bool:
        found = memory_of(shape, tokens, round(trained_share * tokens), **how)
        return found.total <= budget

    low, high = 0, 1
    while fits(high) and high < 1 << 40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _layer_bytes(shape: ModelShape, bf16: bool) -> int:
    """Bytes that one layer keeps of one token for its backward pass.

    float32: both norms keep their input, the normed and the scaled one (6 H), attention keeps
    queries, keys, values and its output twice (3 Q + 2 K) with a number a head, the MLP gate, its
    activation, up and their product (4 I).

    In bfloat16 the stream between layers, and so four of the six H, stay in float32; each of the
    five projections that read a norm keeps a rounded copy of its own.
    """
    attention, mlp, small = 3 * shape.queries + 2 * shape.keys, 4 * shape.intermediate, 4
    if not bf16:
        return 4 * (6 * shape.hidden + attention + mlp + shape.heads + 2)
    return 26 * shape.hidden + 2 * (attention + mlp) + small * (shape.heads + 2)


def _moment_bytes(shape: ModelShape, optimizer: Optimizer, lora_rank: int) -> int:
    count = shape.adapters(lora_rank) if lora_rank else shape.parameters
    if optimizer == "adamw":
        return 8 * count
    if optimizer == "adamw_8bit":
        return 2 * count + 8 * count // 256  # and two float32 scales a block of 256
    if optimizer == "adafactor":
        if lora_rank:
            return 4 * count  # thin matrices: a row's and a column's moments at most
        rows = 2 * (shape.hidden + shape.queries) + 2 * (shape.hidden + shape.keys)
        rows += 3 * (shape.hidden + shape.intermediate)
        return 4 * (shape.layers * rows + (shape.vocab + shape.hidden) * (1 if shape.tied else 2))
    return 0
