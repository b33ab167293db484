"""A simulated server on a socket: built from a configuration, run by uvicorn."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from testbed.build import build
from testbed.config import RunConfig
from testbed.serving.app import Service, make_app
from testbed.serving.limits import Limits
from testbed.serving.live import LiveSimulation
from testbed.serving.metrics import Metrics
from testbed.serving.output_lengths import OutputLengths
from testbed.serving.request_log import RequestLog
from testbed.serving.splitter import FolderTokenizer, HashingSplitter


@dataclass(frozen=True)
class ServeOptions:
    """Where and how a server serves. drain_s: seconds in which requests may end at shutdown."""

    host: str = "127.0.0.1"
    port: int = 8000
    speed: float = 1.0
    output_lengths: str | None = None
    tokenizer: Path | None = None
    api_key: str | None = None
    log: Path | None = None
    drain_s: int = 30
    limits: Limits = field(default_factory=Limits)


def make_service(config: RunConfig, options: ServeOptions) -> Service:
    """The service of a configuration, whose time does not pass yet."""
    setup = build(config)
    metrics = Metrics(setup.model.name)
    lengths = OutputLengths(options.output_lengths, config.seed)
    folder = options.tokenizer
    splitter = HashingSplitter() if folder is None else FolderTokenizer(folder)
    log = None if options.log is None else RequestLog(options.log)
    live = LiveSimulation(setup, metrics, options.speed, log)
    metrics.observe(live)
    name, limits, key = setup.model.name, options.limits, options.api_key
    return Service(live, name, metrics, lengths, splitter, limits, key)


def uvicorn_config(app: FastAPI, options: ServeOptions) -> uvicorn.Config:
    """How uvicorn runs the application: no access log, so that no line is kept of a request."""
    return uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="warning",
        server_header=False,
        limit_concurrency=options.limits.max_connections,
        timeout_graceful_shutdown=options.drain_s,
    )


def serve(config: RunConfig, options: ServeOptions) -> None:
    """Serve until the process is told to end."""
    service = make_service(config, options)
    print(
        f"simulated {service.model} at http://{options.host}:{options.port}/v1, "
        f"speed {options.speed:g}",
        file=sys.stderr,
        flush=True,
    )
    uvicorn.Server(uvicorn_config(make_app(service), options)).run()
    left_out = service.live.num_cancelled
    if left_out:
        print(f"{left_out} requests were cancelled; a log leaves them out", file=sys.stderr)
