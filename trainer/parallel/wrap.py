"""The policy of a run in many processes, and its weights and moments made whole again.

`ddp`: a replica on every rank. There is no wrapper: gradients are summed once an optimiser step by
`trainer.parallel.reduce.sum_gradients`, so no way of calling the model can miss the sum.

`fsdp`: torch's `fully_shard`, a unit a decoder layer and one for the rest. Body and head, which
log-probs are computed by, gather what they need themselves (`trainer.parallel.ends`). Gradients are
summed, where torch would average them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.config import OptimConfig
from trainer.errors import ConfigError
from trainer.learning.optim import build_optimizer
from trainer.models.lean import lean_of
from trainer.models.packed_attention import packs
from trainer.models.policy import body_and_head
from trainer.parallel.context import Group
from trainer.parallel.ends import empty_pass, open_ends
from trainer.parallel.reduce import meets

__all__ = [
    "WholeParameters",
    "copy_weights",
    "cut_like",
    "cut_moments",
    "decoder_layers",
    "gathered_whole",
    "put_whole_moments",
    "put_whole_weights",
    "same_weights",
    "shard",
    "share",
    "try_whole",
    "whole_moments",
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
    same_weights(model)
    if not group.sharded:
        return model
    layers = decoder_layers(model)
    try_whole(model, packing)
    open_ends(model)
    shard(model, layers, group)
    meets(model, empty_pass)
    return model


def same_weights(model: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)


def try_whole(model: nn.Module, packing: bool | None) -> None:
    """Tries once what is tried of a model only while all its weights are here."""
    if packing is not False:
        packs(model)
    lean_of(model)
    body_and_head(model)


def shard(model: nn.Module, layers: Sequence[nn.Module], group: Group) -> None:
    """Cuts a model in place: a unit for each of `layers`, and one for the rest."""
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


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Where a model is cut.

    Raises:
        ConfigError: it does not say.
    """
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise ConfigError(
            f"parallel.mode=fsdp cuts a model at its decoder layers, and {type(model).__name__} "
            "names none. Use parallel.mode: ddp."
        )
    return found


def gathered_whole(tensor: Tensor) -> Tensor:
    """The tensor of which ranks hold parts; all of them must ask for it."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


class WholeParameters(nn.Module):
    """The parameters of a model, each made whole when it is its turn; all ranks must ask alike.

    For teachers that follow the policy and are no shards.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # In a tuple: a submodule would make the policy's parameters this one's.
        self._model = (model,)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        for parameter in self._model[0].parameters(recurse):
            yield gathered_whole(parameter.detach())


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Gives a whole model on this rank the weights of a sharded one, a tensor at a time."""
    for kept, trained in zip(target.parameters(), source.parameters(), strict=True):
        kept.copy_(gathered_whole(trained.detach()))


@torch.no_grad()
def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, whole, on the CPU; all ranks must ask for it."""
    return {name: gathered_whole(p.detach()).cpu().clone() for name, p in model.named_parameters()}


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
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    twin: nn.Module,
    config: OptimConfig,
    group: Group,
) -> torch.optim.Optimizer:
    """The optimiser of `twin` (from `whole_policy`) with the moments of all ranks.

    Moments are there on rank 0, which writes them; all ranks must ask.
    """
    found = whole_moments(model, optimizer, group)
    made = build_optimizer(twin, config)
    for name, parameter in twin.named_parameters():
        if name in found:
            made.state[parameter] = found[name]
    return made


@torch.no_grad()
def whole_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: Group
) -> dict[str, dict[str, Any]]:
    """State of each parameter by name, whole, on the CPU of rank 0; empty elsewhere."""
    found: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            whole = gathered_whole(value) if isinstance(value, Tensor) else value
            if group.writes:
                kept = whole.cpu().clone() if isinstance(whole, Tensor) else whole
                found.setdefault(name, {})[moment] = kept
    return found


@torch.no_grad()
def put_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Gives a sharded model its part of whole weights, which every rank has."""
    for name, parameter in model.named_parameters():
        parameter.copy_(cut_like(weights[name], parameter))


def cut_like(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has whole; `whole` if `like` is not cut."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def put_whole_moments(
    twin: nn.Module,
    whole: torch.optim.Optimizer,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Cuts moments of `whole`, the optimiser of `twin`, into the shards of `optimizer`."""
    parameters = dict(model.named_parameters())
    for name, parameter in twin.named_parameters():
        if parameter in whole.state:
            optimizer.state[parameters[name]] = dict(whole.state[parameter])
    cut_moments(optimizer)


def cut_moments(optimizer: torch.optim.Optimizer) -> None:
    """Moments of a parameter's shape that lie whole on every rank become shards, as it is."""
    if getattr(optimizer, "keeps_whole", False):
        return
    for parameter, state in optimizer.state.items():
        for moment, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
                state[moment] = cut_like(value, parameter)
