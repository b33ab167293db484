"""`--speculative-config` of vLLM's server, as our speculation."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.model_files import model_names
from testbed.core.specs import ModelSpec
from testbed.experiments.vllm_server.eagle_config import EAGLE, EAGLE3, eagle_of
from testbed.experiments.vllm_server.named import model_named
from testbed.vllm.command import SERVE
from testbed.vllm.releases import Release
from testbed.vllm.server import Speculative

OPTION = "--speculative-config"
KNOWN = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
LOOKUPS = ("lookup_min", "lookup_max")
NGRAM, NGRAM_GPU, DRAFT_MODEL = "ngram", "ngram_gpu", "draft_model"
MTP = "mtp"
HEADS = (EAGLE, EAGLE3, MTP)


def speculative_of(
    text: str | None, release: Release, folders: Sequence[Path] = ()
) -> Speculative | None:
    """The speculation of an option's value, a JSON object; None without one. Raises InputError for
    what is not modelled.
    """
    if text is None:
        return None
    values = _read(text)
    num_drafts = values.get("num_speculative_tokens")
    if type(num_drafts) is not int or num_drafts < 1:
        raise _refusal(
            f"num_speculative_tokens={num_drafts!r}: must be a whole number of at least 1",
            "give it, even if the model's config has one",
        )
    return _made(values, num_drafts, release, folders)


def check_own_layers(speculative: Speculative | None, model: ModelSpec) -> None:
    """Raise InputError for a model that is asked for layers that draft, and has none."""
    if speculative is not None and speculative.is_of_model and not model.drafts_itself:
        raise DoesNotStart(
            key=f"{SERVE}: {OPTION}",
            problem=f"vLLM does not start: {model.name} has no layers that draft (MTP)",
        )


def _made(
    values: Mapping[str, Any], num_drafts: int, release: Release, folders: Sequence[Path]
) -> Speculative:
    from testbed.speculation.draft_model import DraftModel
    from testbed.speculation.heads import Heads

    method, model = _method(values), values.get("model")
    count = f"speculation.num_drafts={num_drafts}"
    if method in (NGRAM, NGRAM_GPU):
        on_gpu = method == NGRAM_GPU or release.looks_up_on_gpu
        return _ngram(values, num_drafts, on_gpu=on_gpu)
    if method == MTP:
        heads = Heads(num_drafts)
        return Speculative(heads, ("speculation=heads", count), is_of_model=True)
    if model is None:
        raise _refusal(f"method={method}: vLLM does not start without a model that drafts")
    if method in HEADS:
        return eagle_of(method, str(model), num_drafts, release)
    option = model_named(str(model), folders).option
    if option not in model_names():
        raise _refusal(f"model={model}: has no shape of ours", "testbed list model")
    words = "speculation=draft_model", f"speculation.drafter={option}", count
    return Speculative(DraftModel(num_drafts, option), words)


def _ngram(values: Mapping[str, Any], num_drafts: int, *, on_gpu: bool) -> Speculative:
    """The lengths of the look-up are those of the command, of which one alone is both. A GPU's are
    of no effect on memory or time.
    """
    from testbed.speculation.ngram import NGram
    from testbed.speculation.ngram_gpu import NGramGpu

    options = {"num_drafts": num_drafts}
    lengths = [values[f"prompt_{name}"] for name in LOOKUPS if f"prompt_{name}" in values]
    if lengths:
        options |= zip(LOOKUPS, (lengths[0], lengths[-1]), strict=True)
    for name, value in options.items():
        if type(value) is not int or value < 1:
            raise _refusal(f"prompt_{name}={value!r}: must be a whole number of at least 1")
    if on_gpu:
        words = f"speculation={NGRAM_GPU}", f"speculation.num_drafts={num_drafts}"
        return Speculative(NGramGpu(num_drafts=num_drafts), words)
    looked_up = [f"speculation.{name}={value}" for name, value in options.items()]
    return Speculative(NGram(**options), ("speculation=ngram", *looked_up))


def _read(text: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        raise _refusal(f"{text}: is no JSON object", "give one, or --speculative-config.KEY VALUE")
    unknown = next((name for name in values if name not in KNOWN), None)
    if unknown is not None:
        raise _refusal(
            f"{unknown}: is not modelled",
            f"leave it out to see the server without it; read are {', '.join(KNOWN)}",
        )
    return values


def _method(values: Mapping[str, Any]) -> str:
    """The method, by vLLM's rules if it is not given."""
    method, model = values.get("method"), values.get("model")
    if method is None and model is None:
        raise _refusal("has neither method nor model")
    if method is None:
        name = str(model).lower()
        method = "eagle3" if "eagle3" in name else "eagle" if "eagle-" in name else DRAFT_MODEL
    if str(method).endswith("_mtp"):
        method = MTP
    if method not in (NGRAM, NGRAM_GPU, DRAFT_MODEL, *HEADS):
        raise _refusal(
            f"method={method}: is not modelled",
            f"choose from {NGRAM}, {NGRAM_GPU}, {DRAFT_MODEL}, {', '.join(HEADS)}",
        )
    return str(method)


def _refusal(problem: str, remedy: str = "") -> InputError:
    return InputError(key=f"{SERVE}: {OPTION}", problem=problem, remedy=remedy)
