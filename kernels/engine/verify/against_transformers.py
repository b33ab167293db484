"""The engine's logits against those of `transformers` in fp32: random models of every family, saved and read back.

A model with kv_dtype_bytes=1 has a cache of e4m3 in the engine; the reference then rounds every K and V to e4m3.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testbed.kernels.engine.architecture import of_folder
from testbed.kernels.engine.verify.scenarios import SCENARIOS, Recording, Scenario, record
from testbed.kernels.engine.weights import load_weights
from testbed.kernels.measure.fingerprint import fingerprint, in_short, write_rows

TOLERANCE = 2e-2  # of the largest logit: fp16 weights and activations through up to 24 layers
SPREAD = 3.0  # standard deviation of the logits, so that choices are not all ties
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-opt": ("opt", {"hidden_size": 256, "ffn_dim": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
                         "word_embed_proj_dim": 256, "vocab_size": 1000, "max_position_embeddings": 1024}),
    "tiny-llama": ("llama", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                             "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000}),
    "tiny-llama-3": ("llama", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                               "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
                               "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "tiny-qwen2": ("qwen2", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
                             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}),
    "tiny-mistral": ("mistral", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                                 "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
                                 "vocab_size": 1000, "sliding_window": 48}),
    "tiny-qwen2-window": ("qwen2", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                                    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
                                    "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 48}),
    "tiny-llama-3-fp8": ("llama", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                                   "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
                                   "kv_dtype_bytes": 1}),
    "tiny-mistral-fp8": ("mistral", {"hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 4,
                                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
                                     "vocab_size": 1000, "sliding_window": 48, "kv_dtype_bytes": 1}),
    "qwen2.5-0.5b": ("qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                               "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
                               "max_position_embeddings": 32768, "tie_word_embeddings": True,
                               "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}  # fmt: skip


def verify(models: str | None, scenarios: str, out: Path | None) -> bool:
    """Check models (comma-separated names; None for all) in the scenarios whose names contain `scenarios`.

    Prints a line for each, and writes them to a table; returns whether all pass.
    """
    rows = []
    for name in models.split(",") if models else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            reference = make_model(name, Path(folder))
            arch = of_folder(Path(folder))
            arch = replace(arch, spec=replace(arch.spec, kv_dtype_bytes=MODELS[name][1].get("kv_dtype_bytes")))
            weights = load_weights(arch, Path(folder), "cuda", torch.float16)
            for scenario in SCENARIOS:
                if scenarios not in scenario.name or (scenario.beam and reference.rounds):
                    continue
                for mode, graphs in (("debug", 0), ("graphs", 64)):
                    found = record(scenario, arch, weights, "cuda", torch.float16, graphs)
                    judged = judge(reference, found, scenario)
                    rows.append({"model": name, "scenario": scenario.name, "mode": mode, **judged})
                    print(*rows[-1].values(), sep="  ", flush=True)
    wrong = [row for row in rows if not row["right"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    if out:
        write_rows(out / "right.csv", rows, in_short(fingerprint()))
    return not wrong


def make_model(name: str, folder: Path) -> Any:
    """A random model in fp16 saved to `folder`; returned in fp32 with the same values."""
    import transformers

    family, changes = MODELS[name]
    known = {key: value for key, value in changes.items() if key != "kv_dtype_bytes"}
    config = transformers.AutoConfig.for_model(family, **known)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.eval()
    randomize(model)
    model = model.half()
    model.save_pretrained(folder)
    model.rounds = "kv_dtype_bytes" in changes
    return model.float().cuda()


def randomize(model: Any) -> None:
    """Set random biases and gains, and a head that gives logits a spread."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.1)
        spread = model(torch.arange(64)[None]).logits.std()
        last = model.model.decoder.final_layer_norm if model.config.model_type == "opt" else model.model.norm
        final = list(last.parameters())
        for parameter in final:
            parameter *= SPREAD / spread


def judge(reference: Any, found: Recording, scenario: Scenario) -> dict[str, Any]:
    """Errors of a recording; a choice counts where the reference's best two differ by more than the tolerance."""
    worst, clear, equal = 0.0, 0, 0
    for ours, theirs in pairs_of(reference, found):
        top = theirs.abs().amax(dim=1)
        worst = max(worst, float(((ours.float() - theirs).abs().amax(dim=1) / top).max()))
        best = torch.topk(theirs, 2, dim=1)
        sure = best.values[:, 0] - best.values[:, 1] > TOLERANCE * top
        clear += int(sure.sum())
        equal += int((sure & (ours.argmax(dim=1) == best.indices[:, 0])).sum())
    beams = judge_beams(reference, found) if scenario.beam else {"beams": 0, "beams_equal": 0, "score_error": 0.0}
    right = worst <= TOLERANCE and clear == equal and clear > 0 and beams["score_error"] <= TOLERANCE
    counts = {"rows": len(found.rows), "error": round(worst, 5), "choices": clear, "choices_equal": equal}
    return {**counts, **beams, "right": right}


def pairs_of(reference: Any, found: Recording, batch_size: int = 8) -> Any:
    """The engine's logits and the reference's, [rows, vocab_size] each, for a few sequences at a time."""
    rows = sorted(found.rows, key=lambda row: row[0])
    whole = [a for (a, _), (b, _) in zip(rows, [*rows[1:], ((), None)], strict=True) if b[: len(a)] != a]
    at = 0
    for first in range(0, len(whole), batch_size):
        texts = whole[first : first + batch_size]
        padded = torch.zeros((len(texts), max(map(len, texts))), dtype=torch.int64)
        for i, text in enumerate(texts):
            padded[i, : len(text)] = torch.tensor(text)
        logits = forward(reference, padded.cuda())
        for i, text in enumerate(texts):
            mine: list[tuple[tuple[int, ...], Tensor]] = []
            while at < len(rows) and text[: len(rows[at][0])] == rows[at][0]:
                mine.append(rows[at])
                at += 1
            yield torch.stack([row for _, row in mine]), torch.stack([logits[i, len(t) - 1] for t, _ in mine])


def forward(reference: Any, tokens: Tensor) -> Tensor:
    """The reference's logits at every position; later tokens do not influence them."""
    cache: dict[str, Any] = {"past_key_values": rounding_cache()} if reference.rounds else {"use_cache": False}
    with torch.inference_mode():
        logits: Tensor = reference(tokens, **cache).logits
    return logits


def rounding_cache() -> Any:
    """A cache that returns K and V rounded to e4m3, by a scale of 1."""
    import transformers

    cache: Any = transformers.DynamicCache()
    update = cache.update

    def rounded(k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        return update(*(x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) for x in (k, v)), *rest, **more)

    cache.update = rounded
    return cache


def judge_beams(reference: Any, found: Recording) -> dict[str, Any]:
    """The engine's beams against the reference's search: without length penalty, without an end of sequence.

    score_error: the reference's rating of its best candidate minus that of the engine's, relative to the former.
    Correct searches may differ at near ties; a wrong one ends with a worse candidate.
    """
    equal, error = 0, 0.0
    for request in found.records.requests:
        i, prompt = request.request_id, torch.tensor([found.prompts[request.request_id]]).cuda()
        with torch.inference_mode():
            theirs = reference.generate(
                prompt, attention_mask=torch.ones_like(prompt), num_beams=request.num_seqs, do_sample=False,
                num_return_sequences=request.num_seqs, max_new_tokens=request.output_len, length_penalty=0.0,
                early_stopping=False, eos_token_id=None, pad_token_id=0, output_scores=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        texts, outputs = theirs.sequences[:, request.prompt_len :].tolist(), found.records.outputs[i]
        equal += sorted(texts) == sorted(outputs)
        ours = outputs[max(range(len(outputs)), key=found.records.totals[i].__getitem__)]
        best = float(theirs.sequences_scores.max())
        error = max(error, (best - rating(reference, found.prompts[i], ours)) / abs(best))
    return {"beams": len(found.records.requests), "beams_equal": equal, "score_error": round(error, 5)}


def rating(reference: Any, prompt: list[int], output: list[int]) -> float:
    """The log-probability that the reference gives to an output."""
    tokens = torch.tensor(prompt + output).cuda()
    scores = torch.log_softmax(forward(reference, tokens[None])[0].double(), dim=1)
    return float(scores[len(prompt) - 1 : -1].gather(1, tokens[len(prompt) :, None]).sum())
