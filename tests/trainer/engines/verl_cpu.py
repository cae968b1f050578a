"""verl's own engine on a CPU, in this process: what of verl runs without a GPU.

verl finds its hardware through `verl.plugin.platform`, a public registry that has CUDA, ROCm and
NPU. `use_cpu` registers a CPU there, and verl's FSDP2 engine for it. Everything behind it (the
worker, the engine, its mini-batches and micro-batches, losses, optimiser) is verl's, unchanged.
"""

from __future__ import annotations

import contextlib
import os
import types
from pathlib import Path
from typing import Any

import torch

from trainer.config import Config


def use_cpu(store: Path) -> None:
    """Makes verl of this process run on the CPU, as rank 0 of 1. A second call does nothing."""
    if not torch.distributed.is_initialized():
        use_cpu_platform()
        torch.distributed.init_process_group(
            "gloo", rank=0, world_size=1, init_method=f"file://{store}"
        )


def use_cpu_platform() -> None:
    """The same without a process group; once in a process."""
    from verl.plugin.platform import (  # type: ignore[import-not-found, unused-ignore]
        PlatformBase,
        set_platform,
    )
    from verl.workers.engine import (  # type: ignore[import-not-found, unused-ignore]
        EngineRegistry,
    )
    from verl.workers.engine.fsdp.transformer_impl import (  # type: ignore[import-not-found, unused-ignore]
        FSDPEngineWithLMHead,
    )

    device = types.ModuleType("cpu_device")
    vars(device).update(
        {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")},
        empty_cache=lambda: None,
        ipc_collect=lambda: None,
        get_device_name=lambda *_: "cpu",
        mem_get_info=lambda *_: (0, 0),
        set_rng_state=lambda *_: None,  # the CPU's own is kept beside it
    )
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated",
                 "memory_reserved"):  # fmt: skip
        setattr(device, name, lambda *_: 0)

    class Cpu(PlatformBase):  # type: ignore[misc, unused-ignore]
        device_name = vendor_name = "cpu"
        device_module = device

        def is_available(self) -> bool:
            return True

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device_count(self) -> int:
            return 1

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CPU_VISIBLE_DEVICES"

        def nvtx_range(self, msg: str) -> Any:
            return contextlib.nullcontext()

        def ray_resource_name(self) -> str:
            return "CPU"

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def _nothing(self, *_: Any) -> None: ...

        set_device = synchronize = manual_seed = manual_seed_all = _nothing
        set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing

    set_platform(Cpu())
    EngineRegistry.register(
        model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu", vendor="cpu"
    )(FSDPEngineWithLMHead)


OVERRIDES = (
    "trainer.device=cpu", "trainer.n_gpus_per_node=1", "trainer.logger=[]",
    "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.model.use_remove_padding=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
)  # fmt: skip
"""What a CPU without flash-attn needs of verl's settings."""


class LocalWorkers:
    """A worker group of one, in this process: verl's `ActorRolloutRefWorker`, its methods called
    without Ray between.

    Attributes:
        gradients: of the last optimiser step, whole.
    """

    def __init__(self, settings: Any) -> None:
        from verl.workers.engine_workers import (  # type: ignore[import-not-found, unused-ignore]
            ActorRolloutRefWorker,
        )

        self._dispatch_info = {"actor": [0]}
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # not used: the group is there
        before = dict(os.environ)
        os.environ.update(place)
        try:
            self.worker = ActorRolloutRefWorker(config=settings.actor_rollout_ref, role="actor")
            self.worker.init_model()
        finally:
            for name in place:
                os.environ.pop(name, None)
            os.environ.update({name: before[name] for name in place if name in before})
        self.gradients: dict[str, torch.Tensor] = {}
        self.worker.actor.engine.optimizer.register_step_pre_hook(self._keep_gradients)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    @property
    def module(self) -> Any:
        return self.worker.actor.engine.module

    def weights(self) -> dict[str, torch.Tensor]:
        """Whole float32 copies of the policy's weights."""
        return {
            name: value.full_tensor().detach().clone()
            for name, value in self.module.named_parameters()
        }

    def compute_ref_log_prob(self, data: Any) -> Any:
        """As a reference: the log-probs of its own weights."""
        return self.worker.compute_log_prob(data)

    def _keep_gradients(self, *_: Any) -> None:
        """Those of the last optimiser step."""
        self.gradients = {
            name: value.grad.full_tensor().clone()
            for name, value in self.module.named_parameters()
            if value.grad is not None
        }


class Servers:
    """What stands for verl's inference servers: the weights go to a model of this process."""

    def __init__(self, workers: LocalWorkers, acting: Any) -> None:
        self.workers, self.acting = workers, acting
        self.updates = 0

    def update_weights(self, _: int) -> None:
        self.updates += 1
        with torch.no_grad():
            own = dict(self.acting.named_parameters())
            for name, value in self.workers.weights().items():
                own[name].copy_(value)

    def sleep_replicas(self) -> None: ...


def local_trainer(config: Config, tokenizer: Any, acting: Any, sampler: Any, **named: Any) -> Any:
    """A `SeroTrainer` whose actor is verl's worker of this process.

    Args:
        acting: the model that `sampler` samples from.
        named: of `Driver`.
    """
    from verl.trainer.ppo.utils import Role  # type: ignore[import-not-found, unused-ignore]

    from trainer.engines.verl.driver import Driver
    from trainer.engines.verl.main import compose
    from trainer.engines.verl.sero_trainer import SeroTrainer, student_of

    settings = compose(config, OVERRIDES)
    made = SeroTrainer(
        settings,
        tokenizer,
        role_worker_mapping={Role.ActorRolloutRef: None, Role.ActorRollout: None},
        resource_pool_manager=None,
    )
    made.actor_rollout_wg = LocalWorkers(settings)
    if made.use_reference_policy:
        # Its worker for a reference offloads to pinned memory, which needs an accelerator.
        made.ref_policy_wg = LocalWorkers(settings)
    made.checkpoint_manager = Servers(made.actor_rollout_wg, acting)
    made.driver = Driver(config, student_of(config, tokenizer), sampler, made.score, **named)
    return made
