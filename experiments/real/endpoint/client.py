"""The client: sends each request at its time, and takes the times of its tokens."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.experiments.real.endpoint.address import Address
from testbed.experiments.real.endpoint.stream import HttpStream
from testbed.serving.headers import ARRIVAL

PATH = "/v1/completions"
EVENT, DONE = "data:", "[DONE]"
EARLY_S = 0.2  # a connection is opened so long before its request
MAX_REASON = 300  # characters of what a server says


class Ask(NamedTuple):
    """A prompt's token ids, the output tokens, and when it is sent (s)."""

    prompt: list[int]
    output_len: int
    at_s: float


class Answered(NamedTuple):
    """Times (s) since the first request was due, by the client's clock. server_s: when it reached
    the engine, by the server's clock; None if the server does not say so.
    """

    sent_s: float
    first_token_s: float
    finish_s: float
    server_s: float | None


class Refused(Exception):
    """A server's answer in place of tokens."""


FAILURES = (Refused, OSError, EOFError, ValueError)  # of the server, or on the way to it


class Client:
    """Asks a server for completions of a model; sampling is greedy, and ends by length alone."""

    def __init__(self, address: Address, model: str) -> None:
        self._address = address
        self._model = model
        self._start_s = 0.0

    async def send(self, asks: Sequence[Ask], limit_s: float) -> list[Answered]:
        """Ask each at its time. Raises InputError at the first that is not answered as asked, or
        if not all are within limit_s seconds.
        """
        self._start_s = time.monotonic() + EARLY_S
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(ask)) for ask in asks]
        except TimeoutError:
            done = sum(task.done() and not task.cancelled() for task in tasks)
            raise InputError(
                key="--url",
                value=self._address.url,
                problem=(
                    f"answered {done} of {len(asks)} requests within {limit_s:.0f} s, which is no "
                    "log of the workload"
                ),
                remedy="--limit-s",
            ) from None
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if not isinstance(first, FAILURES):
                raise first from None
            raise InputError(
                key="--url",
                value=self._address.url,
                problem=(
                    "a request failed, so that this is no log of the workload: "
                    f"{str(first) or type(first).__name__}"
                ),
            ) from None
        return [task.result() for task in tasks]

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    async def _ask(self, ask: Ask) -> Answered:
        await asyncio.sleep(ask.at_s - EARLY_S - self._now_s())
        stream = await HttpStream.open(self._address)
        try:
            await asyncio.sleep(ask.at_s - self._now_s())
            sent_s = self._now_s()
            path = f"{self._address.root}{PATH}"
            await stream.post(path, self._address.headers, self._body(ask))
            return await self._tokens(stream, sent_s, ask.output_len)
        finally:
            stream.close()

    def _body(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _tokens(self, stream: HttpStream, sent_s: float, output_len: int) -> Answered:
        """Read a stream of tokens to its end."""
        if stream.status != 200:
            answer = " ".join([line async for line in stream.lines()])
            raise Refused(f"it answers {stream.status}: {reason_of(answer)}")
        times_s, num_tokens = list[float](), 0
        async for line in stream.lines():
            event = line.removeprefix(EVENT).strip()
            if not line.startswith(EVENT) or event == DONE:
                continue
            now_s, answer = self._now_s(), json.loads(event)
            if "error" in answer:
                raise Refused(f"it answers {reason_of(event)}")
            if answer.get("choices"):
                times_s.append(now_s)
            num_tokens = (answer.get("usage") or {}).get("completion_tokens", num_tokens)
        if num_tokens != output_len or not times_s:
            raise Refused(
                f"{num_tokens} tokens in place of {output_len} (the server must take ignore_eos "
                "and stream_options.include_usage, as vLLM's does)"
            )
        server_s = stream.headers.get(ARRIVAL)
        reached_s = None if server_s is None else float(server_s)
        return Answered(sent_s, times_s[0], times_s[-1], reached_s)


def reason_of(text: str) -> str:
    """The message of an error in OpenAI's shape, else the text, in one line."""
    with suppress(ValueError, TypeError, KeyError):
        answer = json.loads(text)
        text = str(answer.get("error", answer)["message"])
    return " ".join(text.split())[:MAX_REASON]
