"""Text generation with a Hugging Face folder's tokenizer and model, all prompts in one batch."""

import importlib
from pathlib import Path
from typing import Any

import torch

from testbed.core.errors import InputError
from testbed.core.request import Request
from testbed.core.slots import ceil_div
from testbed.kernels.engine.architecture import of_folder
from testbed.kernels.engine.assemble import Options, assemble
from testbed.kernels.engine.weights import load_weights
from testbed.memory.paged.paged import Paged
from testbed.memory.policy import PoolSpec
from testbed.sched.mixed import MixedPrefill
from testbed.sched.preemption import Recompute


def generate(folder: Path, prompts: list[str], num_tokens: int, num_beams: int, device: str) -> list[str]:
    """num_tokens greedy tokens after each prompt, or the best of num_beams beams."""
    tokenizer = load_tokenizer(folder)
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    arch = of_folder(folder)
    dtype = torch.float32 if device == "cpu" else torch.float16
    longest = max(map(len, ids)) + num_tokens
    blocks = 2 * len(ids) * num_beams * ceil_div(longest, 16) + 16
    pool = PoolSpec(16 * blocks, min(arch.spec.max_len, longest))
    scheduler = MixedPrefill(Paged(pool), Recompute(), max_num_batched_tokens=8192, max_num_seqs=256)
    engine = assemble(scheduler, pool, arch, load_weights(arch, folder, device, dtype), Options(device, dtype))
    requests = [
        Request(i, 0, len(one), num_tokens, num_beams, num_beams > 1, prompt_ids=tuple(one))
        for i, one in enumerate(ids)
    ]
    records = engine.serve(requests)
    if records.rejections:
        raise InputError(f"prompt {min(records.rejections)}: {records.rejections[min(records.rejections)]}")
    totals = [records.totals[i] or [0.0] for i in range(len(prompts))]
    return [tokenizer.decode(records.outputs[i][of.index(max(of))]) for i, of in enumerate(totals)]


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer.json, by the package tokenizers."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path}: is missing (generate needs the model's tokenizer)")
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise InputError("generate: needs the package tokenizers (install it first)") from None
    return tokenizers.Tokenizer.from_file(str(path))
