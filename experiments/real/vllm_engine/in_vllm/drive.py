"""Asks a vLLM engine for what a plan says, and writes down what each request got.

    python drive.py PLAN.json FOLDER

This module runs with the packages of the user's vLLM and imports nothing of this project. PLAN:
{"arguments": [words as of `vllm serve`], "waves": [...], "deadline_s": S}; without "waves" those of
sweeps.py are asked, for the limits of the engine that has come up; a wave that is "present" stands
for those of the host's present speed. A wave has "running", lists of
[prompt tokens, output tokens], asked at once, and "prompts", lists of [number of prompts, new
tokens, tokens behind which they are], asked one list after the other while those run. Without
"prompts" the wave lasts until all of "running" have ended. A wave with "arrivals_s" asks its
"requests", each {"prompt": [token ids], "output": tokens}, at these times.
FOLDER gets requests.jsonl (vLLM's own times, and the client's: asked_s, first_s, last_s, of the
same clock), waves.csv (without times for what the deadline left out) and what
step_log.py writes. Lines for the user begin with
"testbed: ".
"""

import asyncio
import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sweeps import FIRST_ID, LAST_ID, PRESENT, present_waves, waves  # type: ignore[import-not-found]

Wave = dict[str, Any]

SCHEDULERS = {True: "step_log.LoggedScheduler", False: "step_log.LoggedAsyncScheduler"}


def log(*words: object) -> None:
    print("testbed:", *words, flush=True)


class Client:
    """Asks for tokens of prompts that have nothing in common, and drops them."""

    def __init__(self, engine: Any, seed: int = 0) -> None:
        self.engine = engine
        self.ids = np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []
        self.num_asked = 0
        self.wave = ""  # the name of what is asked now

    def prompt(self, length: int) -> list[int]:
        ids: list[int] = self.ids.integers(FIRST_ID, LAST_ID, length).tolist()
        return ids

    async def ask(self, prompt: list[int], output: int, begun: asyncio.Event | None = None) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        name, self.num_asked = f"r{self.num_asked}", self.num_asked + 1
        params = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        last, moments = None, [time.monotonic()]
        async for answer in self.engine.generate({"prompt_token_ids": prompt}, params, name):
            last = answer
            moments.append(time.monotonic())
            if begun is not None:
                begun.set()
        clients = {"asked_s": moments[0], "first_s": moments[1], "last_s": moments[-1]}
        self.rows.append({"wave": self.wave, **row_of(name, len(prompt), output, last), **clients})


def row_of(name: str, prompt_len: int, output: int, answer: Any) -> dict[str, Any]:
    stats = answer.metrics
    if stats.num_generation_tokens != output:
        raise RuntimeError(f"{name}: {stats.num_generation_tokens} tokens in place of {output}")
    return {
        "request_id": name,
        "input_toks": prompt_len,
        "output_toks": output,
        "cached_toks": answer.num_cached_tokens or 0,
        "arrival_time": stats.arrival_time,
        "queued_ts": stats.queued_ts,
        "scheduled_ts": stats.scheduled_ts,
        "first_token_ts": stats.first_token_ts,
        "last_token_ts": stats.last_token_ts,
    }


async def sweep(client: Client, wave: Wave) -> None:
    """A wave of requests that run, and prompts among them."""
    begun = list[asyncio.Event]()
    running = list[asyncio.Task[None]]()
    for prompt_len, output in wave["running"]:
        begun.append(asyncio.Event())
        asking = client.ask(client.prompt(prompt_len), output, begun[-1])
        running.append(asyncio.create_task(asking))
    if not wave["prompts"]:
        await asyncio.gather(*running)
        return
    await asyncio.gather(*(event.wait() for event in begun))
    for count, new, past in wave["prompts"]:
        shared = client.prompt(past)
        if past:
            await client.ask(shared, 1)
        prompts = [shared + client.prompt(new) for _ in range(count)]
        await asyncio.gather(*(client.ask(prompt, wave["output"]) for prompt in prompts))
        await asyncio.sleep(wave["pause_s"])
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def serve(client: Client, wave: Wave) -> None:
    """Requests at their times of arrival."""
    start_s, asked = time.monotonic(), []
    for moment_s, request in zip(wave["arrivals_s"], wave["requests"], strict=True):
        await asyncio.sleep(max(0.0, start_s + moment_s - time.monotonic()))
        asked.append(asyncio.create_task(client.ask(request["prompt"], request["output"])))
    await asyncio.gather(*asked)


def engine_of(arguments: list[str]) -> Any:
    """The engine that `vllm serve` would start with these words; those of its HTTP server are
    ignored.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed, _ = parser.parse_known_args(arguments)
    args = AsyncEngineArgs.from_cli_args(parsed)
    args.scheduler_cls = SCHEDULERS[args.async_scheduling is False]
    args.disable_log_stats = False
    args.skip_tokenizer_init = True
    return AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)


async def main(plan: dict[str, Any], folder: Path) -> None:
    begin_s = time.monotonic()
    engine = engine_of(plan["arguments"])
    log(f"engine up after {time.monotonic() - begin_s:.0f} s")
    client = Client(engine)
    asked = list(asked_waves(plan.get("waves"), folder / "facts.json"))
    done = []
    for number, wave in enumerate(asked, start=1):
        if time.monotonic() - begin_s > plan["deadline_s"]:
            log(f"out of time before {number} of {len(asked)}: {wave['name']}")
            done += [(left["name"], "", "") for left in asked[number - 1 :]]
            break
        client.wave, started_s = wave["name"], time.monotonic()
        await (serve if "arrivals_s" in wave else sweep)(client, wave)
        ended_s = time.monotonic()
        done.append((wave["name"], f"{started_s:.6f}", f"{ended_s:.6f}"))
        log(f"{number} of {len(asked)}: {wave['name']}, {ended_s - started_s:.1f} s")
    engine.shutdown()
    with (folder / "waves.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "started_s", "ended_s"), *done])
    with (folder / "requests.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in client.rows)


def asked_waves(planned: list[Any] | None, facts: Path) -> Iterator[Wave]:
    """The waves of a plan, with the sweeps for an engine with the limits that step_log.py has
    written in `facts`.
    """
    if planned and PRESENT not in planned:
        yield from planned
        return
    limits = json.loads(facts.read_text())
    known = {
        "max_num_batched_tokens": limits["max_num_batched_tokens"],
        "max_num_seqs": limits["max_num_seqs"],
        "max_model_len": limits["max_model_len"],
        "pool_tokens": limits["num_gpu_blocks"] * limits["block_size"],
    }
    if not planned:
        yield from waves(**known, caches_prefixes=limits["prefix_caching"])
    for wave in planned or ():
        yield from present_waves(**known) if wave == PRESENT else [wave]


def facts() -> dict[str, str]:
    """Facts of the machine and the software."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": current_platform.get_device_name(),
        "host": f"{processor()}, {os.cpu_count()} cores",
    }


def processor() -> str:
    """The host's processor by its own name, if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown processor")


if __name__ == "__main__":
    target = Path(sys.argv[2])
    os.environ["TESTBED_STEPS"] = str(target)
    (target / "machine.json").write_text(json.dumps(facts(), indent=1))
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), target))
