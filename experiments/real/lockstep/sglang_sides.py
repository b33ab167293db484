"""Our scheduler and SGLang's, each driven by its engine's loop, with constant iterations."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from testbed.core.request import Request
from testbed.experiments.real.lockstep import sglang_installation as sglang
from testbed.experiments.real.lockstep.comparison import Iteration, SideFailed, Sides, Tokens
from testbed.experiments.real.lockstep.sglang_installation import (
    STOP,
    Hierarchy,
    Options,
    options_of,
)
from testbed.experiments.real.lockstep.sides import Ours
from testbed.run.build import Setup, build
from testbed.run.result import front_end

FIRST = 10  # tokens below are special ones


class TheirsOfSGLang:
    """The scheduler of the installed SGLang; an output token is one that no request had, or what
    later prompts contain.
    """

    def __init__(self, options: Options, hierarchy: Hierarchy | None = None) -> None:
        self.name = f"sglang {sglang.installed_release()}"
        self.options = options
        self.scheduler = sglang.make_scheduler(options, hierarchy)
        self.in_flight: Any = None  # with overlap the batch whose results are not processed
        self._tokens = Tokens(FIRST)
        self._requests: dict[str, Request] = {}
        self._retracted: list[int] = []
        self._enqueue = self.scheduler._add_request_to_queue
        self.scheduler._add_request_to_queue = self._queued

    def iterations(self, requests: Sequence[Request], iteration_ps: int) -> Iterator[Iteration]:
        """The iterations that compute something, until all requests have ended.

        With overlap a batch is planned when the one before begins, whose results are processed
        afterwards; else when that one has ended.
        """
        arriving, now_ps = deque(requests), 0
        while True:
            while arriving and arriving[0].arrival_ps <= now_ps:
                self.add(arriving.popleft())
            batch = self._next_batch()
            if batch is not None:
                begins_ps = now_ps + (iteration_ps if self.in_flight is not None else 0)
                yield self.iteration(batch, begins_ps)
            if self.process(batch):
                now_ps += iteration_ps
            elif self.in_flight is None:
                if not arriving:
                    return
                now_ps = max(now_ps, arriving[0].arrival_ps)

    def process(self, batch: Any) -> bool:
        """Process the results of a batch, with overlap of the one before it; whether there are
        any.
        """
        if self.options.overlaps:
            batch, self.in_flight = self.in_flight, None if batch is None else batch.copy()
        if batch is not None:
            sglang.finish(self.scheduler, batch, self._sample)
        elif self.in_flight is None:
            self.scheduler.new_token_ratio_tracker.reset()  # on_idle
        return batch is not None

    def _next_batch(self) -> Any:
        try:
            return sglang.next_batch(self.scheduler, overlaps=self.options.overlaps)
        except RuntimeError as error:  # as if a chunk goes on without memory for it
            raise SideFailed(f"{self.name}: {str(error).splitlines()[0]}") from error

    def iteration(self, batch: Any, begins_ps: int) -> Iteration:
        """Tokens that a batch computes, with the retractions since the one before; None: no
        batch.
        """
        retracted, self._retracted = tuple(self._retracted), []
        if batch is None:
            return Iteration(begins_ps, {}, retracted)
        names = [int(req.rid) for req in batch.reqs]
        if not batch.forward_mode.is_extend():
            return Iteration(begins_ps, dict.fromkeys(names, 1), retracted)
        decoding = {int(req.rid) for req in batch.decoding_reqs or ()}
        prefixes = zip(names, batch.prefix_lens, strict=True)
        cached = {name: n for name, n in prefixes if n and name not in decoding}
        tokens = dict(zip(names, batch.extend_lens, strict=True))
        return Iteration(begins_ps, tokens, retracted, cached)

    def state(self) -> list[str]:
        """Its requests and its pool now."""
        scheduler = self.scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size()
        cached = scheduler.tree_cache.evictable_size()
        lines = [
            f"{free} slots are free, {cached} cached; new token ratio "
            f"{scheduler.new_token_ratio_tracker.current:.6f}; "
            f"{'full' if scheduler.running_batch.batch_is_full else 'open'}"
        ]
        lines += [
            f"running {req.rid}: {req.kv.kv_committed_len} stored, {len(req.output_ids)} generated"
            for req in scheduler.running_batch.reqs
        ]
        waiting = (
            f"{req.rid} ({len(req.origin_input_ids) + len(req.output_ids)} tokens)"
            for req in scheduler.waiting_queue
        )
        return [*lines, "waiting " + (", ".join(waiting) or "none")]

    def _queued(self, req: Any, is_retracted: bool = False) -> None:
        if is_retracted:
            self._retracted.append(int(req.rid))
        self._enqueue(req, is_retracted)

    def add(self, request: Request) -> None:
        """The request arrives."""
        options = self.options
        req = sglang.make_request(
            request.request_id,
            self._tokens.prompt(request),
            request.max_new_tokens,
            request.priority if options.reads_priorities else None,
            ignore_eos=options.ignore_eos,
        )
        self.scheduler.init_req_max_new_tokens(req)
        self._requests[req.rid] = request
        if not options.ignore_eos:
            self._tokens.end_answer(request, STOP)
        self.scheduler._add_request_to_queue(req)

    def _sample(self, req: Any) -> int:
        request, number = self._requests[req.rid], len(req.output_ids)
        if number + 1 == request.output_len and not self.options.ignore_eos:
            return STOP
        return self._tokens.answer(request, number)


class OursOfSGLang(Ours):
    """Our scheduler of SGLang, with what it finds in its cache."""

    counts_cached = True

    def state(self) -> list[str]:
        """Its requests and its pool now."""
        scheduler: Any = self.scheduler
        used, outputs = scheduler.policy.usage(), scheduler.outputs
        lines = [
            f"{used.free} slots are free, {used.cached} cached; new token ratio "
            f"{scheduler.ratio.current:.6f}; {'full' if scheduler.is_full else 'open'}"
        ]
        lines += [
            f"running {group.request_id}: {group.sequences[0].num_slots} stored, "
            f"{outputs.generated(group)} generated"
            for group in scheduler.running
        ]
        waiting = (
            f"{group.request_id} ({group.prefill_len} tokens)" for group in scheduler.state.waiting
        )
        return [*lines, "waiting " + (", ".join(waiting) or "none")]


def sides_of_sglang(
    overrides: Sequence[str], requests: list[Request] | None
) -> tuple[Callable[[], Sides], Setup]:
    """A function that makes a new pair of schedulers, ours first, and one setup of ours.

    overrides: words of `testbed run`. requests: replace the configured trace and arrivals. Raises
    InputError if SGLang is not installed or lacks an option.
    """
    config = front_end().configure(overrides, {} if requests is None else {"trace": requests})
    setup = build(config)
    setup.check_alone("a lockstep")
    options = options_of(setup)
    return lambda: (OursOfSGLang(build(config)), TheirsOfSGLang(options)), setup
