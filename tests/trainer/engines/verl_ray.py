"""verl's processes over Ray, on a CPU: data-parallel ranks of its actor, and servers.

Imported by verl's worker processes, so it imports verl at once.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.single_controller.base.decorator import (  # type: ignore[import-not-found, unused-ignore]
    Dispatch,
    register,
)
from verl.workers.engine_workers import (  # type: ignore[import-not-found, unused-ignore]
    ActorRolloutRefWorker,
)
from verl.workers.rollout.replica import (  # type: ignore[import-not-found, unused-ignore]
    TokenOutput,
)

import trainer.engines.verl.plugin  # noqa: F401
from tests.trainer.engines.verl_cpu import use_cpu_platform
from trainer.generation.base import GenerationRequest


class CpuWorker(ActorRolloutRefWorker):  # type: ignore[misc, unused-ignore]
    """verl's worker, told to use the CPU; its process group is made here."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        use_cpu_platform()
        super().__init__(*arguments, **named)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        torch.distributed.init_process_group(
            "gloo", rank=self.rank, world_size=self.world_size, init_method="env://"
        )
        super().init_model()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weights(self) -> dict[str, torch.Tensor]:
        """Whole copies of the policy's weights, on every rank."""
        return {
            name: value.full_tensor().detach().clone()
            for name, value in self.actor.engine.module.named_parameters()
        }


class GreedyServer:
    """In the place of a vLLM server: the same coroutine, answered by our own sampler."""

    def __init__(self, folder: str, stop_ids: tuple[int, ...]) -> None:
        from transformers import AutoModelForCausalLM

        from trainer.generation.hf import HFSampler

        self.sampler = HFSampler(AutoModelForCausalLM.from_pretrained(folder).eval(), stop_ids)
        self.requests = 0

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **_: Any,
    ) -> TokenOutput:
        assert sampling_params["temperature"] == 0.0
        self.requests += 1
        asked = GenerationRequest(
            tuple(prompt_ids), None, sampling_params["max_tokens"], greedy=True
        )
        (reply,) = self.sampler.generate([asked])
        return TokenOutput(
            token_ids=list(reply.ids), log_probs=list(reply.logprobs), stop_reason="completed"
        )

    def count(self) -> int:
        """Requests answered so far."""
        return self.requests


def server_client(settings: Any, folder: str, stop_ids: tuple[int, ...], servers: int) -> Any:
    """verl's `LLMServerClient` and load balancer over so many servers, and those."""
    import ray
    from verl.workers.rollout.llm_server import (  # type: ignore[import-not-found, unused-ignore]
        LLMServerClient,
    )
    from verl.workers.rollout.router import (  # type: ignore[import-not-found, unused-ignore]
        get_router_handle,
    )

    handles = [ray.remote(GreedyServer).remote(folder, stop_ids) for _ in range(servers)]
    router = get_router_handle(
        servers={f"server{i}": handle for i, handle in enumerate(handles)},
        router_config_path=None,
        full_determinism=False,
        load_balancer_cls=None,
    )
    return LLMServerClient(config=settings, load_balancer_handle=router), handles


def worker_group(settings: Any, ranks: int) -> Any:
    """verl's `RayWorkerGroup` of so many ranks, on the Ray that runs."""
    import ray
    from verl.single_controller.ray import (  # type: ignore[import-not-found, unused-ignore]
        RayClassWithInitArgs,
        RayResourcePool,
        RayWorkerGroup,
    )

    pool = RayResourcePool(process_on_nodes=[ranks], use_gpu=False, max_colocate_count=1)
    made = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=RayClassWithInitArgs(
            cls=ray.remote(CpuWorker), config=settings.actor_rollout_ref, role="actor"
        ),
        device_name="cpu",
        use_gpu=False,
    )
    made.init_model()
    return made
