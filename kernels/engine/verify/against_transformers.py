"""The engine's logits against those of `transformers` in fp32: random models of every family, saved
and read back.

A model with kv_dtype_bytes=1 has a cache of e4m3 in the engine; the reference then rounds every K
and V to e4m3.
"""

import json
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from testbed.kernels.engine.architecture import of_folder
from testbed.kernels.engine.records import write_csv
from testbed.kernels.engine.verify.scenarios import SCENARIOS, Row, record
from testbed.kernels.engine.weight_folder import load_weights
from testbed.kernels.measure.timing import fingerprint

TOLERANCE = 2e-2  # of the largest logit: fp16 weights and activations through up to 24 layers
SPREAD = 3.0  # standard deviation of the logits, so that choices are not all ties


def known_models() -> dict[str, dict[str, Any]]:
    """The values of every model's config.json, the bytes of its cached values if they are not the
    weights', and the values with which a server starts it if they are not the reference's.
    """
    return tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))


def verify(out: Path | None) -> bool:
    """Check every model in every scenario.

    Prints a line for each, and writes them to a table; returns whether all pass.
    """
    rows = []
    for name in known_models():
        with tempfile.TemporaryDirectory() as folder:
            reference = make_model(name, Path(folder))
            arch = of_folder(Path(folder))
            arch = replace(
                arch, spec=replace(arch.spec, kv_dtype_bytes=1 if reference.rounds else None)
            )
            weights = load_weights(arch, Path(folder), "cuda", torch.float16)
            for scenario in SCENARIOS:
                for mode, graphs in (("debug", 0), ("graphs", 64)):
                    recorded = record(scenario, arch, weights, graphs)
                    judged = judge(reference, recorded)
                    rows.append({"model": name, "scenario": scenario.name, "mode": mode, **judged})
                    print(*rows[-1].values(), sep="  ", flush=True)
    wrong = [row for row in rows if not row["right"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    if out:
        device = "{device}, torch {torch}, CUDA {runtime_cuda}, {date}".format(**fingerprint())
        write_csv(out / "right.csv", rows[0], (row.values() for row in rows), device)
    return not wrong


def make_model(name: str, folder: Path) -> Any:
    """A random model in fp16 saved to `folder`; returned in fp32 with the same values."""
    import transformers

    values = known_models()[name]
    rounds = values.pop("kv_dtype_bytes", None) == 1
    served_as = values.pop("served_as", {})
    config = transformers.AutoConfig.for_model(**values)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.eval()
    randomize(model)
    model = model.half()
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | served_as))
    model.rounds = rounds
    return model.float().cuda()


def randomize(model: Any) -> None:
    """Set random biases and gains, and a head that gives logits a spread."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.1)
        spread = model(torch.arange(64)[None]).logits.std()
        last = (
            model.model.decoder.final_layer_norm
            if model.config.model_type == "opt"
            else model.model.norm
        )
        final = list(last.parameters())
        for parameter in final:
            parameter *= SPREAD / spread


def judge(reference: Any, recorded: list[Row]) -> dict[str, Any]:
    """Errors of a recording; a choice counts if the reference's best two differ by more than the
    tolerance.
    """
    worst, clear, equal = 0.0, 0, 0
    for ours, theirs in pairs_of(reference, recorded):
        top = theirs.abs().amax(dim=1)
        worst = max(worst, float(((ours.float() - theirs).abs().amax(dim=1) / top).max()))
        best = torch.topk(theirs, 2, dim=1)
        sure = best.values[:, 0] - best.values[:, 1] > TOLERANCE * top
        clear += int(sure.sum())
        equal += int((sure & (ours.argmax(dim=1) == best.indices[:, 0])).sum())
    counts = {
        "rows": len(recorded),
        "error": round(worst, 5),
        "choices": clear,
        "choices_equal": equal,
    }
    return {**counts, "right": worst <= TOLERANCE and clear == equal and clear > 0}


def pairs_of(reference: Any, recorded: list[Row], batch_size: int = 8) -> Any:
    """The engine's logits and the reference's, [rows, vocab_size] each, for a few sequences at a
    time.
    """
    texts: list[list[Row]] = []  # rows of which each begins with the one before
    for row in sorted(recorded, key=lambda row: row[0]):
        if texts and row[0][: len(texts[-1][-1][0])] == texts[-1][-1][0]:
            texts[-1].append(row)
        else:
            texts.append([row])
    for first in range(0, len(texts), batch_size):
        batch = texts[first : first + batch_size]
        padded = pad_sequence([torch.tensor(rows[-1][0]) for rows in batch], batch_first=True)
        for rows, logits in zip(batch, forward(reference, padded.cuda()), strict=True):
            yield (
                torch.stack([row for _, row in rows]),
                logits[[len(tokens) - 1 for tokens, _ in rows]],
            )


def forward(reference: Any, tokens: Tensor) -> Tensor:
    """The reference's logits at every position; later tokens do not influence them."""
    cache: dict[str, Any] = (
        {"past_key_values": rounding_cache()} if reference.rounds else {"use_cache": False}
    )
    with torch.inference_mode():
        logits: Tensor = reference(tokens, **cache).logits
    return logits


def rounding_cache() -> Any:
    """A cache that returns K and V rounded to e4m3, by a scale of 1."""
    import transformers

    cache: Any = transformers.DynamicCache()
    update = cache.update

    def rounded(k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        return update(
            *(x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (k, v)), *rest, **more
        )

    cache.update = rounded
    return cache
