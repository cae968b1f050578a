"""Sampling with transformers' continuous batching: a paged cache, prefixes shared by all requests.

The library neither takes a generator for each request nor draws in float64, so a logits processor
of ours does the drawing: it chooses every row's token as `trainer.generation.draw` does, from the
request's own stream, and leaves the library a row in which that token is the only one. Replies
are therefore those of the `hf` backend, whatever shares the batch with them.

What was computed with other weights must go when they change: the library keeps keys and values
through a pause, so the whole manager ends when nothing is pending, and is built anew for the next
request.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trainer.generation.base import (
    Generation,
    GenerationRequest,
    NonFiniteLogitsError,
    SamplerError,
    answer_all,
    check_request,
)
from trainer.generation.draw import draw
from trainer.generation.slots import Row
from trainer.models.packed_attention import PACKED_SDPA, implementation
from trainer.models.policy import evaluation_mode

__all__ = ["ContinuousSampler"]

# Without flash attention the library holds a mask of tokens in a pass x tokens in the cache.
_MASK_ENTRIES = 1 << 28
_FEWEST_TOKENS = 256


class ContinuousSampler:
    """`StreamingSampler` over transformers' continuous batching, with the model's own weights.

    Sessions need no name here: equal beginnings are found by their ids.

    Args:
        model: a transformers causal language model.
        stop_ids: tokens that end a reply; they stay in the ids.
        pad_id: fills padding; it has no effect.
        max_batch_tokens: tokens computed in one forward pass; fewer where the library would need
            a mask of more than 2**28 entries.
        cache_tokens: tokens whose keys and values fit the paged cache.
        timeout_s: longest wait for the next finished reply.

    Raises:
        SamplerError: this transformers has no continuous batching that can be used, or none for
            this model.
    """

    def __init__(
        self,
        model: nn.Module,
        stop_ids: Collection[int],
        *,
        pad_id: int = 0,
        max_batch_tokens: int = 16384,
        cache_tokens: int = 131072,
        timeout_s: float = 600.0,
    ) -> None:
        if not stop_ids:
            raise ValueError("stop_ids is empty; every reply would run to max_new_tokens")
        self.model: Any = model
        self.stop_ids = frozenset(int(i) for i in stop_ids)
        self.pad_id = pad_id
        self.max_batch_tokens, self.cache_tokens = max_batch_tokens, cache_tokens
        self.timeout_s = timeout_s
        self._pending: dict[int, GenerationRequest] = {}
        self._running: dict[str, Row] = {}
        self._failed: list[NonFiniteLogitsError] = []
        self._manager: Any = None
        self._mode = ExitStack()
        _library()
        config: Any = model.config
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
            raise SamplerError(
                f"{type(model).__name__} caps its attention scores (attn_logit_softcapping), and "
                "continuous batching of transformers does not: it would sample from another "
                "distribution than the trainer's. Use sampler.backend=hf."
            )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample one reply for each request, in their order.

        Raises:
            ValueError: a request that cannot be served.
            SamplerError: the library failed, or replies are pending.
            NonFiniteLogitsError: logits are not finite.
        """
        if self._pending:
            raise SamplerError("Replies are pending. Collect or drop them before generate().")
        return answer_all(self, requests)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Take a request; it starts at once.

        Raises:
            ValueError: it cannot be served, or `key` is pending already.
            SamplerError: the library did not start.
        """
        check_request(request)
        if key in self._pending:
            raise ValueError(f"key {key} is pending already; collect it first")
        self._pending[key] = request
        self._begin(key, request)

    def collect(self) -> list[tuple[int, Generation]]:
        """Finished replies: at least one, unless nothing is pending.

        Raises:
            SamplerError: the library failed, or no reply came in time. What is pending stays so,
                and the next call begins it anew, with the draws it would have had.
            NonFiniteLogitsError: logits are not finite.
        """
        if not self._pending:
            return []
        if self._manager is None:
            for key, request in self._pending.items():
                self._begin(key, request)
        done: list[tuple[int, Generation]] = []
        output = self._wait()
        while output is not None:
            row = self._running.pop(output.request_id)
            problem = _problem(output, row)
            if problem is not None:
                self._stop()
                if done:  # these are nobody's any more; what failed is begun anew by the next call
                    return done
                if self._failed:
                    raise self._failed[0]
                raise SamplerError(problem)
            done.append((row.key, row.generation(self.stop_ids)))
            del self._pending[row.key]
            output = self._manager.get_result(timeout=0) if self._running else None
        if not self._pending:
            # The library's thread would keep the process from ending.
            self._stop()
        return done

    def drop(self) -> None:
        """Forget what is pending."""
        if self._pending:
            self._pending.clear()
            self._stop()

    def refresh(self) -> None:
        """The weights have changed. Nothing is kept while nothing is pending.

        Raises:
            SamplerError: replies are still running, with the weights as they were.
        """
        if self._pending:
            raise SamplerError(
                "The weights changed while replies are running. Collect or drop them first."
            )

    def close(self) -> None:
        """Ends the library's thread and frees the cache."""
        self._pending.clear()
        self._stop()

    def _begin(self, key: int, request: GenerationRequest) -> None:
        if self._manager is None:
            self._start()
        name = f"request {key}"
        # A copy: what is begun anew draws the same again.
        own = copy.copy(request) if request.rng is None else _with_stream(request)
        self._running[name] = Row(own, key)
        self._manager.add_request(
            [int(i) for i in request.prompt_ids],
            request_id=name,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=sorted(self.stop_ids),
        )

    def _start(self) -> None:
        library = _library()
        tokens = self.max_batch_tokens
        if "flash" not in str(self.model.config._attn_implementation):
            tokens = min(tokens, max(_FEWEST_TOKENS, _MASK_ENTRIES // self.cache_tokens))
        page = 256 if next(self.model.parameters()).is_cuda else 16
        # Dropout and the like are off for as long as replies are running.
        self._mode.enter_context(evaluation_mode(self.model))
        self._mode.enter_context(_known_attention(self.model))
        self._failed.clear()
        try:
            manager = self.model.init_continuous_batching(
                generation_config=library.GenerationConfig(
                    do_sample=False,
                    eos_token_id=sorted(self.stop_ids),
                    pad_token_id=self.pad_id,
                ),
                continuous_batching_config=library.ContinuousBatchingConfig(
                    page_size=page,
                    num_blocks=-(-self.cache_tokens // page),
                    max_batch_tokens=tokens,
                    use_cuda_graph=False,  # a graph would replay the first draws
                    use_async_batching=False,  # a token is drawn before the next one is prepared
                    auto_switch_to_flash=False,  # the trainer goes on using this model
                ),
            )
            manager.logit_processor = _processors(self._running, self._failed)
            manager.start()
        except (TypeError, AttributeError, ValueError, RuntimeError) as error:
            self._mode.close()
            raise SamplerError(
                f"Continuous batching of transformers {library.__version__} did not start: "
                f"{error}. Use sampler.backend=hf."
            ) from error
        self._manager = manager

    def _stop(self) -> None:
        manager, self._manager = self._manager, None
        self._running.clear()
        try:
            if manager is not None:
                manager.stop(block=True, timeout=self.timeout_s, hard_stop=True)
                manager.destroy()
        finally:
            self._mode.close()

    def _wait(self) -> Any:
        """The next output."""
        until = time.monotonic() + self.timeout_s
        while time.monotonic() < until:
            output = self._manager.get_result(timeout=1)
            if output is not None:
                return output
            if not self._manager.is_running():
                self._stop()
                raise SamplerError("The thread of continuous batching ended. See its log.")
        self._stop()
        raise SamplerError(
            f"No reply within sampler.timeout_s={self.timeout_s}. Raise it, or lower "
            "rollout.max_new_tokens."
        )


@contextmanager
def _known_attention(model: Any) -> Iterator[None]:
    """`packed_sdpa` is `sdpa` to the library, which knows that name alone."""
    if implementation(model) != PACKED_SDPA:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(PACKED_SDPA)


def _problem(output: Any, row: Row) -> str | None:
    """What is wrong with the library's answer; None: nothing."""
    if output.error is not None:
        return f"Continuous batching failed on a request: {output.error}"
    if list(output.generated_tokens) != row.ids:
        return (
            "Continuous batching returned other tokens than were drawn. Use "
            "sampler.backend=hf with this version of transformers."
        )
    return None


def _with_stream(request: GenerationRequest) -> GenerationRequest:
    return replace(request, rng=copy.deepcopy(request.rng))


def _library() -> Any:
    """transformers, if it has what is needed here."""
    import transformers

    if not hasattr(transformers, "ContinuousBatchingConfig"):
        raise SamplerError(
            f"transformers {transformers.__version__} has no continuous batching that takes a "
            "processor for every request. Use sampler.backend=hf, or a newer transformers."
        )
    return transformers


def _processors(rows: dict[str, Row], failed: list[NonFiniteLogitsError]) -> Any:
    """The library's list of logits processors, with ours as the only one.

    Args:
        failed: gets what went wrong in the library's thread, which hands on only its text.
    """
    try:
        from transformers import LogitsProcessorList
        from transformers.generation.continuous_batching.cb_logits_processors import (
            ContinuousBatchingLogitsProcessor,
            ContinuousBatchingLogitsProcessorList,
        )
    except ImportError as error:
        raise SamplerError(
            f"This transformers has other continuous batching than is known here: {error}. Use "
            "sampler.backend=hf."
        ) from error

    class Drawing(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
        """Draws every row's next token."""

        supported_kwargs: ClassVar[dict[str, type]] = {}
        ignored_kwargs: ClassVar[tuple[str, ...]] = ()

        def __init__(self) -> None:
            self.rows: list[Row] = []

        def fill_defaults(self, int32_tensor: Tensor) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
            # Called once before every forward pass, in the order of the rows of its logits.
            self.rows = [rows[r.state.request_id] for r in requests_with_new_token]
            return torch.zeros(len(self.rows), dtype=torch.int32)

        def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
            chosen = self.rows
            if not chosen:
                return scores
            try:
                tokens, logprobs = draw(
                    scores[: len(chosen)],
                    [row.request for row in chosen],
                    [False] * len(chosen),
                    lambda place: chosen[place].name,
                )
            except NonFiniteLogitsError as error:
                failed.append(error)
                raise
            for row, token, logprob in zip(chosen, tokens.tolist(), logprobs, strict=True):
                row.ids.append(token)
                row.logprobs.append(logprob)
            only = torch.full_like(scores, -torch.inf)
            only[torch.arange(len(chosen), device=scores.device), tokens] = 0.0
            only[len(chosen) :] = scores[len(chosen) :]
            return only

    found = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([Drawing()]))
    found.tensors_required = 1
    return found
