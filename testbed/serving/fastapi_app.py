"""The FastAPI application: OpenAI's endpoints over a live engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from testbed.serving.answering import Answering
from testbed.serving.answers import Form
from testbed.serving.api_errors import ApiError
from testbed.serving.call import Call
from testbed.serving.client_limits import Limits
from testbed.serving.headers import DRAWN, IGNORED, LAG, MAX_LAG, SIMULATED
from testbed.serving.live import Live
from testbed.serving.prometheus_metrics import Metrics
from testbed.serving.prompts import Prompts
from testbed.serving.protocol import ChatBody, CompletionBody, Sampling, parsed
from testbed.serving.rehearsal import rehearse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CLIENT_GONE = 499  # it has no reader
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Service:
    """State that the endpoints share: the engine, and how requests become its requests.

    names: by which requests name the model; answers have the first.
    """

    def __init__(
        self,
        live: Live,
        names: tuple[str, ...],
        metrics: Metrics,
        answering: Answering,
        prompts: Prompts,
        limits: Limits,
    ) -> None:
        self.live = live
        self.names, self.model = names, names[0]
        self.metrics = metrics
        self.answering = answering
        self.prompts = prompts
        self.limits = limits
        self.started_s = int(time.time())
        self.is_stopping = False

    def headers(self) -> dict[str, str]:
        """Headers of every answer: whether it is simulated, and the lag behind real time."""
        return {SIMULATED: str(self.answering.is_simulated).lower(), **self.lag_headers()}

    def headers_of(self, body: Sampling) -> dict[str, str]:
        """Also what of the request had no meaning, and the source of a drawn length."""
        headers = self.headers()
        if ignored := self.answering.ignored(body):
            headers[IGNORED] = ", ".join(ignored)
        if drawn_from := self.answering.drawn_from(body):
            headers[DRAWN] = drawn_from
        return headers

    def lag_headers(self) -> dict[str, str]:
        """The seconds of real time by which a simulation is behind, now and at most."""
        if self.live.lags is None:
            return {}
        return {LAG: f"{self.live.lags[0]:.6f}", MAX_LAG: f"{self.live.lags[1]:.6f}"}

    async def answer(self, request: Request, kind: type[Sampling], form: Form) -> Response:
        """Answer a request of either endpoint."""
        if self.is_stopping:
            raise ApiError(503, "the server: is shutting down (try another)")
        try:
            text = await request.body()
        except ClientDisconnect:
            raise ApiError(CLIENT_GONE, "the body: ended before its end") from None
        received_s = time.monotonic()
        body = parsed(kind, text)
        if body.model not in self.names:
            message = f"model={body.model[:80]}: is not served (/v1/models shows the model)"
            raise ApiError(404, message, "model", "model_not_found")
        parts = self.live, self.limits, self.answering, self.prompts
        call = Call(body, form, *parts, received_s)
        await call.submit()
        headers = self.headers_of(body)
        if body.stream:
            return StreamingResponse(call.stream(), headers=headers, media_type="text/event-stream")
        answer = await unless_gone(request, call)
        if answer is None:
            return Response(status_code=CLIENT_GONE)
        return JSONResponse(answer, headers=headers | self.lag_headers())


async def unless_gone(request: Request, call: Call) -> Any:
    """The whole answer, or None if the client goes away before it is complete."""
    answer = asyncio.create_task(call.whole())
    gone = asyncio.create_task(_wait_until_gone(request))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        gone.cancel()
        answer.cancel()
        call.cancel()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(service: Service) -> FastAPI:
    """The application; its engine serves between its start and its shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await rehearse(app, (COMPLETIONS, CHAT))
        service.live.start()
        yield
        service.is_stopping = True
        await service.live.stop()

    # No pages of its own: FastAPI's load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _no_such_path)
    _add_generation(app, service)
    _add_state(app, service)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post(COMPLETIONS)
    async def completions(request: Request) -> Response:
        form = Form("text_completion", "cmpl", service.model)
        return await service.answer(request, CompletionBody, form)

    @app.post(CHAT)
    async def chat(request: Request) -> Response:
        form = Form("chat.completion", "chatcmpl", service.model)
        return await service.answer(request, ChatBody, form)


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        about = {
            "object": "model",
            "created": service.started_s,
            "owned_by": "kvcache-testbed",
            "max_model_len": service.live.max_len,
            "simulated": service.answering.is_simulated,
            "speed": service.live.speed,
        }
        data = [{"id": name, **about} for name in service.names]
        return JSONResponse({"object": "list", "data": data}, headers=service.headers())

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if service.live.is_alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    return JSONResponse(error.body, error.status, headers=headers)


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = ApiError(error.status_code, f"{request.method} of this path: {error.detail}")
    return JSONResponse(refusal.body, error.status_code)
