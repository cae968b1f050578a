"""Low-rank adapters: the policy's own weights are frozen, two thin matrices a layer are trained.

LoRA (arXiv:2106.09685) through peft, the package's extra `lora`. Only the adapters have gradients
and moments, and the policy with its adapters switched off is the one that training started from:
the reference of a KL term costs no second copy of the weights.

A checkpoint holds two things: the policy with the adapters merged into its weights (`merged`),
which loads like any other and needs no peft, and the adapters alone (`adapter_state`), from which
a run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.sections import LoraConfig
from trainer.errors import ConfigError

__all__ = [
    "AdaptersOff",
    "adapted_layers",
    "adapter_state",
    "add_adapters",
    "check_peft",
    "frozen_policy",
    "has_adapters",
    "load_adapter_state",
    "merged",
]


def check_peft() -> None:
    """Raises `ConfigError` where peft is missing."""
    try:
        import peft  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "lora.rank > 0 needs peft, which is not installed: pip install 'sero-rl[lora]'. Or set "
            "lora.rank: 0."
        ) from error


def add_adapters(model: nn.Module, section: LoraConfig) -> nn.Module:
    """The policy with fresh adapters, the only parameters that are trained; `model` is inside it.

    At first it gives the numbers of `model`, bit for bit: one of each two matrices is 0. The other
    is uniform in +-1 / sqrt(inputs), as peft has it, from a generator of its own; the global
    random state of torch is the same afterwards.

    Raises:
        ConfigError: peft is not installed, or `lora.targets` names no linear layer.
    """
    check_peft()
    import peft  # type: ignore[import-not-found, unused-ignore]

    settings = peft.LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=0.0,
        target_modules=adapted_layers(model, section),
        bias="none",
        task_type="CAUSAL_LM",
    )
    # Constructors draw from the global generator; its state is put back.
    with torch.random.fork_rng(devices=[]):
        policy: nn.Module = peft.get_peft_model(model, settings)
    generator = torch.Generator().manual_seed(section.seed)
    with torch.no_grad():
        for name, parameter in sorted(_adapters(policy).items()):
            if "lora_A" in name:
                bound = parameter.shape[1] ** -0.5
                drawn = torch.rand(parameter.shape, generator=generator) * (2 * bound) - bound
                parameter.copy_(drawn)
            else:
                parameter.zero_()
    return policy.eval()


def has_adapters(model: nn.Module) -> bool:
    """Whether `model` is a policy with adapters."""
    return hasattr(model, "peft_config")


class AdaptersOff(nn.Module):
    """The policy as it was before training, for the passes of a reference.

    Holds no parameter of its own: `trainer.learning.update.score_segments` runs the policy's, with
    the adapters off.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        # In a tuple: a submodule would make the policy's parameters this one's.
        self._policy = (policy,)

    @property
    def policy(self) -> nn.Module:
        return self._policy[0]

    def off(self) -> AbstractContextManager[Any]:
        """Inside the block the policy is the one that training started from."""
        scope: AbstractContextManager[Any] = self.policy.disable_adapter()  # type: ignore[operator]
        return scope


def frozen_policy(model: nn.Module) -> tuple[nn.Module, AbstractContextManager[Any]]:
    """The module to run, and the block to run it in."""
    if isinstance(model, AdaptersOff):
        return model.policy, model.off()
    return model, nullcontext()


def merged(policy: nn.Module) -> nn.Module:
    """A copy of the policy as a plain transformers model, adapters added to its weights.

    On the CPU: adapters are trained where there is no room for the weights a second time.
    """
    copies: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().cpu().clone(), requires_grad=False)
        for p in policy.parameters()
    }
    copies |= {id(buffer): buffer.detach().cpu().clone() for buffer in policy.buffers()}
    plain: nn.Module = deepcopy(policy, copies).merge_and_unload()  # type: ignore[operator]
    return plain.requires_grad_(True)


def adapter_state(policy: nn.Module) -> dict[str, Tensor]:
    """The adapters' parameters by name, on the CPU."""
    return {
        name: parameter.detach().cpu().contiguous().clone()
        for name, parameter in _adapters(policy).items()
    }


def load_adapter_state(policy: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `adapter_state` gave.

    Raises:
        ValueError: the tensors are those of other adapters.
    """
    own = _adapters(policy)
    if own.keys() != tensors.keys():
        other = sorted(own.keys() ^ tensors.keys())[0]
        raise ValueError(f"it holds the adapters of other layers: {other!r} is not in both")
    for name, parameter in own.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(tensors[name].shape)}, the policy's is "
                f"{tuple(parameter.shape)}"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def _adapters(policy: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in policy.named_parameters() if "lora_" in name}


def adapted_layers(model: nn.Module, section: LoraConfig) -> list[str]:
    """Last parts of the names of the layers that get adapters.

    Raises:
        ConfigError: `lora.targets` names no linear layer of this model.
    """
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    known = sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
    )
    unknown = sorted(set(section.targets) - set(known))
    if unknown or not known:
        raise ConfigError(
            f"lora.targets: {type(model).__name__} has no linear layer {', '.join(unknown) or ''}; "
            f"it has {', '.join(known) or 'none'}. Name some of these, or none for all."
        )
    return list(section.targets) or known
