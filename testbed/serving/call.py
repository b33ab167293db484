"""One HTTP request: its prompts through the engine, its answer whole or as a stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from testbed.core.request import Request
from testbed.serving.answering import Answering
from testbed.serving.answers import Form, Piece, event, usage
from testbed.serving.api_errors import ApiError
from testbed.serving.client_limits import Limits
from testbed.serving.live import Live
from testbed.serving.prompts import Prompts
from testbed.serving.protocol import ChatBody, Sampling, StreamOptions
from testbed.serving.served_prompt import Event, Served

DEFAULT_COMPLETION_TOKENS = 16  # as OpenAI's


class Call:
    """The prompts of one HTTP request, submitted together. received_s: when it reached the server,
    by time.monotonic.

    Raises ApiError for what exceeds a limit or could never run.
    """

    def __init__(
        self,
        body: Any,
        form: Form,
        live: Live,
        limits: Limits,
        answering: Answering,
        prompts: Prompts,
        received_s: float,
    ) -> None:
        self.body: Sampling = body
        self.form = form
        self.live = live
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._answering = answering
        self._received_s = received_s
        limits.check_sequences(body.num_prompts, body.num_seqs)
        if body.use_beam_search:
            limits.check_beam(body.num_seqs)
        limits.check_stop(body.stop_strings)
        limits.check_priority(body.priority or 0)
        limits.check_unfinished(len(live.unfinished), body.num_prompts)
        if live.log is not None and body.num_seqs > 1:
            message = f"n: the log (--log) has no place for {body.num_seqs} sequences of a request"
            raise ApiError(400, message, "n")
        prompt_ids = prompts.ids(body)
        answering.check(body, prompt_ids)
        max_tokens = [self._max_tokens(len(ids)) for ids in prompt_ids]
        self.prompts = [
            self._served(place, ids, most)
            for place, (ids, most) in enumerate(zip(prompt_ids, max_tokens, strict=True))
        ]

    def _max_tokens(self, prompt_len: int) -> int:
        """The most output tokens of a prompt, by the request and the model's context."""
        body, longest = self.body, self.live.max_len
        if prompt_len == 0:
            raise ApiError(400, "prompt: is empty (send at least one token)", "prompt")
        most = body.max_tokens
        if isinstance(body, ChatBody):
            most = body.max_completion_tokens or most or longest - prompt_len
        elif most is None:
            most = DEFAULT_COMPLETION_TOKENS
        if most < 1 or prompt_len + most > longest:
            message = (
                f"the context: {prompt_len} prompt tokens and max_tokens={max(most, 1)} are more "
                f"than the model's {longest} tokens (send less)"
            )
            raise ApiError(400, message, "max_tokens", "context_length_exceeded")
        if (body.min_tokens or 0) > most:
            message = f"min_tokens={body.min_tokens}: is more than max_tokens={most}"
            raise ApiError(400, message, "min_tokens")
        return most

    def _served(self, place: int, prompt_ids: tuple[int, ...], most: int) -> Served:
        body, answering, request_id = self.body, self._answering, self.live.next_id()
        output_len = answering.output_len(request_id, most, body)
        request = Request(
            request_id,
            arrival_ps=0,  # it arrives when the engine has it
            prompt_len=len(prompt_ids),
            output_len=output_len,
            num_seqs=body.num_seqs,
            beam=bool(body.use_beam_search),
            prompt_ids=prompt_ids,
            priority=body.priority or 0,
            max_new_tokens=most,
        )
        choices = [answering.text(output_len, most, body) for _ in range(body.num_choices)]
        arrived = asyncio.get_running_loop().create_future()
        draws, end_ids = answering.draws(body), answering.end_ids(body)
        return Served(
            place, request, choices, self.events, arrived, self._received_s, draws, end_ids
        )

    async def submit(self) -> None:
        """Let all prompts arrive; if one is refused, the others leave again."""
        await self.live.prepare(self.prompts[0].request)  # they differ in tokens and lengths only
        try:
            await asyncio.gather(*[self.live.submit(served) for served in self.prompts])
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Free what the prompts hold."""
        for served in self.prompts:
            self.live.cancel(served)

    async def whole(self) -> Any:
        """The answer, when all prompts have their whole output."""
        async for _ in self._pieces():
            pass
        return self.form.whole(self.prompts)

    async def stream(self) -> AsyncIterator[str]:
        """The answer as server-sent events, a piece each."""
        options = self.body.stream_options or StreamOptions()
        try:
            async for piece in self._pieces():
                yield self.form.chunk(piece, self._usage_so_far(options))
            if options.include_usage:
                yield self.form.usage_chunk(self.prompts)
            yield "data: [DONE]\n\n"
        except ApiError as error:  # the status was sent long ago
            yield event(error.body)
        finally:
            self.cancel()

    def _usage_so_far(self, options: StreamOptions) -> dict[str, Any]:
        """The usage in an event: nothing, null until the end, or the present one."""
        if options.continuous_usage_stats:
            return {"usage": usage(self.prompts)}
        return {"usage": None} if options.include_usage else {}

    async def _pieces(self) -> AsyncIterator[Piece]:
        """Pieces that tokens add to each sequence, in order of time, until all have ended. If the
        server is behind, tokens of a sequence that wait together make one piece.
        """
        num_left = len(self.prompts)
        while num_left:
            pieces: dict[int, Piece] = {}
            for served, tokens in await self._events_so_far():
                if served.failure is not None:
                    raise served.failure
                for piece in self._added(served, tokens):
                    before = pieces.get(piece.choice)
                    pieces[piece.choice] = piece if before is None else before.with_next(piece)
                if not served.is_answered and all(text.reason for text in served.choices):
                    served.is_answered = True
                    num_left -= 1
                    self.live.answered(served)
            for piece in pieces.values():
                yield piece

    async def _events_so_far(self) -> list[Event]:
        """The next event, and those that wait behind it."""
        events = [await self.events.get()]
        while not self.events.empty():
            events.append(self.events.get_nowait())
        return events

    def _added(self, served: Served, tokens: tuple[int | None, ...]) -> list[Piece]:
        """The pieces of the returned sequences that had not ended before this token."""
        first = served.place * len(served.choices)
        pieces = []
        for number, (choice, token) in enumerate(zip(served.choices, tokens, strict=False)):
            if choice.reason is None:
                text = choice.add(token)
                pieces.append(Piece(first + number, choice.num_tokens, text, choice.reason))
        return pieces
