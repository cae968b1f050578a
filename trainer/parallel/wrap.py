"""The policy of a run in many processes, and its weights and moments made whole again.

`ddp`: a replica on every rank. There is no wrapper: gradients are summed once an optimiser step by
`trainer.parallel.reduce.sum_gradients`, so no way of calling the model can miss the sum.

`fsdp`: torch's `fully_shard`, a unit a decoder layer and one for the rest. Everything goes through
the policy's own `forward`, which gathers what it needs; the way round it, by body and head, is
closed. Gradients are summed, where torch would average them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import OptimConfig
from trainer.errors import ConfigError
from trainer.learning.optim import build_optimizer
from trainer.models.packed_attention import packs
from trainer.parallel.context import Group
from trainer.parallel.reduce import meets

__all__ = [
    "copy_weights",
    "put_whole_moments",
    "share",
    "whole_optimizer",
    "whole_policy",
    "whole_state",
]


def share(model: nn.Module, group: Group, *, packing: bool | None = None) -> nn.Module:
    """The policy as this rank trains it, made from rank 0's weights.

    Args:
        model: the whole policy; becomes the replica, or is cut into shards in place.
        packing: `optim.packing`; what a model can is found out while it is whole.

    Raises:
        ConfigError: the model has no decoder layers to cut it at.
    """
    if group.alone:
        return model
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
    if not group.sharded:
        return model
    if packing is not False:
        packs(model)
    layers = _decoder_layers(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(torch.device(group.device).type, (group.world,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    # By default the outermost unit stays gathered after a pass without gradient, and its
    # parameters are then others than those that the optimiser has.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Plain sums also where the backend could multiply on the way; gloo cannot.
            module.set_force_sum_reduction_for_comms(True)
    meets(model)
    # Body and head apart would read weights that are not gathered.
    model.get_decoder = lambda *_, **__: None  # type: ignore[assignment]
    return model


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise ConfigError(
            f"parallel.mode=fsdp cuts a model at its decoder layers, and {type(model).__name__} "
            "names none. Use parallel.mode: ddp."
        )
    return found


def _whole(tensor: Tensor) -> Tensor:
    """The tensor of which ranks hold parts; all of them must ask for it."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Gives a whole model on this rank the weights of a sharded one, a tensor at a time."""
    for kept, trained in zip(target.parameters(), source.parameters(), strict=True):
        kept.copy_(_whole(trained.detach()))


@torch.no_grad()
def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, whole, on the CPU; all ranks must ask for it."""
    return {name: _whole(p.detach()).cpu().clone() for name, p in model.named_parameters()}


def whole_policy(model: nn.Module, like: nn.Module) -> nn.Module:
    """A policy on the CPU with the trained weights, in their precision.

    Args:
        like: a whole copy of the policy, whatever its values and precision.
    """
    twin = deepcopy(like).cpu()
    weights = whole_state(model)
    for name, parameter in twin.named_parameters():
        parameter.data = weights[name]
    return twin


def whole_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, twin: nn.Module, config: OptimConfig
) -> torch.optim.Optimizer:
    """The optimiser of `twin` (from `whole_policy`) with the moments of all ranks.

    Moments are there on rank 0, which writes them; all ranks must ask.
    """
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
    )

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: dict[str, Any] = {}
    if optimizer.state:
        state: Any = get_optimizer_state_dict(model, optimizer, options=options)
        found = state.get("state", {})
    made = build_optimizer(twin, config)
    for name, parameter in twin.named_parameters():
        if name in found:
            made.state[parameter] = dict(found[name])
    return made


def put_whole_moments(
    twin: nn.Module,
    whole: torch.optim.Optimizer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Cuts moments of `whole`, the optimiser of `twin`, into the shards of `optimizer`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    parameters = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        if parameter not in whole.state:
            continue
        target = parameters[name]
        placed: dict[str, Any] = {}
        for moment, value in whole.state[parameter].items():
            if isinstance(target, DTensor) and isinstance(value, Tensor) and value.dim():
                value = value.to(target.device)
                value = distribute_tensor(value, target.device_mesh, target.placements)
            placed[moment] = value
        optimizer.state[target] = placed
