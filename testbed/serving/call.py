"""One HTTP request: its prompts through the engine, its answer whole or as a stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from testbed.serving.answers import Form, event, finish_reason
from testbed.serving.errors import ApiError
from testbed.serving.limits import Limits
from testbed.serving.live import LiveSimulation, Served
from testbed.serving.output_lengths import OutputLengths
from testbed.serving.protocol import ChatBody, Sampling
from testbed.serving.splitter import TextToIds

DEFAULT_COMPLETION_TOKENS = 16  # as OpenAI's


class Call:
    """The prompts of one HTTP request, submitted together.

    Raises ApiError for what exceeds a limit or could never run.
    """

    def __init__(
        self,
        body: Any,
        form: Form,
        live: LiveSimulation,
        limits: Limits,
        lengths: OutputLengths,
        splitter: TextToIds,
    ) -> None:
        self.body: Sampling = body
        self.form = form
        self.live = live
        self.events: asyncio.Queue[Served] = asyncio.Queue()
        prompts = body.prompts()
        limits.check_sequences(len(prompts), body.num_seqs)
        limits.check_stop(body.stop_strings)
        limits.check_unfinished(len(live.unfinished), len(prompts))
        if live.log is not None and body.num_seqs > 1:
            message = f"n: the log (--log) has no place for {body.num_seqs} sequences of a request"
            raise ApiError(400, message, "n")
        token_ids = [
            splitter.ids(prompt) if isinstance(prompt, str) else tuple(prompt) for prompt in prompts
        ]
        self.max_tokens = [self._max_tokens(len(prompt_ids)) for prompt_ids in token_ids]
        self.prompts = [
            self._served(place, prompt_ids, lengths, most)
            for place, (prompt_ids, most) in enumerate(zip(token_ids, self.max_tokens, strict=True))
        ]

    def _max_tokens(self, prompt_len: int) -> int:
        """The most output tokens of a prompt, by the request and the model's context."""
        body, longest = self.body, self.live.setup.model.max_len
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

    def _served(
        self, place: int, prompt_ids: tuple[int, ...], lengths: OutputLengths, most: int
    ) -> Served:
        body, request_id = self.body, self.live.next_id()
        output_len = lengths.draw(request_id, most, body.min_tokens or 0, bool(body.ignore_eos))
        return Served(
            request_id,
            place,
            prompt_ids,
            output_len,
            body.num_seqs,
            bool(body.use_beam_search),
            body.priority or 0,
            self.events,
            asyncio.get_running_loop().create_future(),
        )

    async def submit(self) -> None:
        """Let all prompts arrive; where one is refused, the others leave again."""
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
        while not all(served.is_ended for served in self.prompts):
            served = await self.events.get()
            if served.failure is not None:
                raise served.failure
        return self.form.whole(self.prompts, self.body.num_choices, self.max_tokens)

    async def stream(self) -> AsyncIterator[str]:
        """The answer as server-sent events, a token of a sequence each."""
        options = self.body.stream_options
        has_usage = options is not None and options.include_usage
        try:
            async for served in self._tokens():
                for text in self._chunks(served, has_usage):
                    yield text
            if has_usage:
                yield self.form.usage_chunk(self.prompts, self.body.num_choices)
            yield "data: [DONE]\n\n"
        except ApiError as error:  # the status was sent long ago
            yield event(error.body)
        finally:
            self.cancel()

    async def _tokens(self) -> AsyncIterator[Served]:
        """A prompt at each of its tokens, in order of time."""
        num_left = sum(served.output_len for served in self.prompts)
        while num_left:
            served = await self.events.get()
            if served.failure is not None:
                raise served.failure
            if served.delivered < served.num_tokens:
                served.delivered += 1
                num_left -= 1
                yield served

    def _chunks(self, served: Served, has_usage: bool) -> list[str]:
        num_choices, number = self.body.num_choices, served.delivered
        is_last = number == served.output_len
        reason = finish_reason(served, self.max_tokens[served.place]) if is_last else None
        first = served.place * num_choices
        return [
            self.form.chunk(first + choice, number, reason, has_usage)
            for choice in range(num_choices)
        ]
