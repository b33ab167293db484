"""Requests before the first one, at which FastAPI and AnyIO import and read their own parts: 0.1 s
that no clock of a simulation sees.
"""

from collections.abc import Mapping
from typing import Any

import anyio
from fastapi import FastAPI


async def rehearse(app: FastAPI, paths: tuple[str, ...]) -> None:
    """Send an empty body, which is refused before it reaches an engine, to each path, and begin a
    group of tasks, as every stream does.
    """
    for path in paths:
        await app(_scope(path), _no_body, _nowhere)
    async with anyio.create_task_group():
        pass


def _scope(path: str) -> dict[str, Any]:
    """ASGI's scope of a POST without headers."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [],
    }


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _nowhere(message: Mapping[str, Any]) -> None:
    """The answer has no reader."""
