"""A server on a socket: built from a configuration, run by uvicorn."""

import gc
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from testbed.core.errors import InputError
from testbed.core.garbage import left_alone
from testbed.run.build import Setup, build
from testbed.run.config import EngineConfig, RunConfig
from testbed.serving.answering import Answering, Generated, Simulated
from testbed.serving.bound_sockets import bound_sockets
from testbed.serving.chat_template import chat_template
from testbed.serving.client_limits import Limits
from testbed.serving.draining import LEFT_S, DrainingServer
from testbed.serving.end_tokens import end_tokens
from testbed.serving.engine_state import show_engine
from testbed.serving.fastapi_app import Service, make_app
from testbed.serving.live import Live
from testbed.serving.live_gpu import EngineProcess, LiveGpu
from testbed.serving.live_simulation import LiveSimulation
from testbed.serving.output_lengths import OutputLengths
from testbed.serving.prometheus_metrics import Metrics
from testbed.serving.prompts import Prompts
from testbed.serving.request_log import RequestLog
from testbed.serving.requests_to_come import (
    check_served,
    reads_priorities,
    unknown_requests,
)
from testbed.serving.tokenizer import FolderTokenizer, HashingSplitter, Tokenizer

RANDOM = "random"


@dataclass(frozen=True)
class ServeOptions:
    """Address and limits of a server. speed: None for real time. drain_s: seconds in which requests
    may end at shutdown. names: of the model, before its own.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    speed: float | None = None
    output_lengths: str | None = None
    tokenizer: Path | None = None
    log: Path | None = None
    drain_s: int = 30
    limits: Limits = field(default_factory=Limits)
    names: tuple[str, ...] = ()


def make_service(config: RunConfig, options: ServeOptions) -> Service:
    """The service of a configuration, which does not serve yet."""
    setup = build(config, unknown_requests())
    check_served(setup)
    make = _simulated if config.engine is None else _generated
    names = tuple(dict.fromkeys((*options.names, setup.model.name)))
    metrics = Metrics(names[0])
    live, answering, prompts = make(setup, options, metrics)
    show_engine(metrics, live, pool_labels(setup))
    limits = options.limits
    if not reads_priorities(setup):
        limits = replace(limits, has_priorities=False)
    if setup.scheduler.steps_in_turn:  # which are modelled for one sequence of a request
        limits = replace(limits, max_seqs_of_prompt=1)
    return Service(live, names, metrics, answering, prompts, limits)


def pool_labels(setup: Setup) -> dict[str, str]:
    """The pool in blocks, as vLLM's metrics label it; empty if engines have different pools, or
    a pool is not of blocks.
    """
    config, size = setup.config, setup.scheduler.memory.block_size
    if size is None or config.servers or len(setup.pool.groups) > 1:
        return {}
    num_blocks = setup.pool.num_slots // size + config.null_blocks
    return {"block_size": str(size), "num_gpu_blocks": str(num_blocks)}


def _simulated(
    setup: Setup, options: ServeOptions, metrics: Metrics
) -> tuple[Live, Answering, Prompts]:
    lengths = OutputLengths(options.output_lengths, setup.config.seed)
    prompts = _prompts(options.tokenizer)
    speed = 1.0 if options.speed is None else options.speed
    live = LiveSimulation(setup, metrics, speed, _log(options, simulated=True))
    return live, Simulated(lengths), prompts


def _generated(
    setup: Setup, options: ServeOptions, metrics: Metrics
) -> tuple[Live, Answering, Prompts]:
    """The engine runs in a process of its own, which builds the same configuration."""
    from testbed.kernels.engine.engine_server import serve_connection  # torch is imported only here

    engine = setup.config.engine or EngineConfig()
    _check_generated(setup, options)
    folder = Path(engine.weights) if engine.weights != RANDOM else None
    prompts = _prompts(options.tokenizer or folder)
    _check_vocabulary(prompts.tokenizer, setup)
    end_ids = frozenset[int]() if folder is None else end_tokens(folder)
    log = _log(options, simulated=False)
    process = EngineProcess(serve_connection, setup.config)
    live = LiveGpu(process, setup.model.max_len, metrics, log)
    return live, Generated(prompts.tokenizer, end_ids, process.vocab_size), prompts


def _check_generated(setup: Setup, options: ServeOptions) -> None:
    """Refuse what only a simulation has."""
    if setup.config.replicas is not None:
        raise InputError(
            key="replicas",
            problem="the engine is one",
            remedy="leave replicas, router and faults out",
        )
    for name, value in (("speed", options.speed), ("output-lengths", options.output_lengths)):
        if value is not None:
            raise InputError(
                key=f"--{name}",
                value=value,
                problem="is for simulations",
                remedy="leave it out with engine=",
            )


def _check_vocabulary(tokenizer: Tokenizer, setup: Setup) -> None:
    if tokenizer.num_ids is not None and tokenizer.num_ids > setup.model.vocab_size:
        raise InputError(
            key="--tokenizer",
            problem=f"has {tokenizer.num_ids} ids, the model {setup.model.vocab_size}",
            remedy="give the model's own",
        )


def _prompts(folder: Path | None) -> Prompts:
    tokenizer: Tokenizer = HashingSplitter() if folder is None else FolderTokenizer(folder)
    return Prompts(tokenizer, chat_template(folder))


def _log(options: ServeOptions, *, simulated: bool) -> RequestLog | None:
    return None if options.log is None else RequestLog(options.log, simulated=simulated)


def uvicorn_config(app: FastAPI, options: ServeOptions) -> uvicorn.Config:
    """Uvicorn's options for the application: no access log, which would name each request."""
    return uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # a client's address is not read
        loop="asyncio",  # uvloop sends nothing before every stream has had its turn
        http="h11",  # whichever other parser is installed
        timeout_graceful_shutdown=options.drain_s + LEFT_S,
    )


def make_server(service: Service, options: ServeOptions) -> DrainingServer:
    """The server of a service, which ends if its log cannot be written."""
    config = uvicorn_config(make_app(service), options)
    server = DrainingServer(config, service.live, options.drain_s)
    if service.live.log is not None:
        service.live.log.on_failure = partial(setattr, server, "should_exit", True)
    return server


def _in_url(host: str) -> str:
    """A name or an address as a URL has it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def serve(config: RunConfig, options: ServeOptions) -> None:
    """Serve until the process gets a signal to end. Raises InputError for an address that cannot be
    had, before anything is built.
    """
    sockets = bound_sockets(options.host, options.port)
    service = make_service(config, options)
    speed = f", speed {options.speed or 1.0:g}" if service.answering.is_simulated else ""
    kind = "simulated " if service.answering.is_simulated else ""
    print(
        f"{kind}{service.model} at http://{_in_url(options.host)}:{options.port}/v1{speed}",
        file=sys.stderr,
        flush=True,
    )
    server = make_server(service, options)
    gc.collect()
    with left_alone():
        server.run(sockets)
    left_out = service.live.num_cancelled
    if left_out:
        print(f"{left_out} requests were cancelled; a log leaves them out", file=sys.stderr)
    if service.live.log is not None and service.live.log.failure is not None:
        raise service.live.log.failure
