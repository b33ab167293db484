"""`--speculative-config` of vLLM's server, as our speculation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec
from testbed.experiments.vllm_server.eagle_config import EAGLE, EAGLE3, eagle_of
from testbed.experiments.vllm_server.named import Named, ShapelessModel, model_named
from testbed.vllm.command import SERVE
from testbed.vllm.releases import Release, version_of
from testbed.vllm.server import Speculative

OPTION = "--speculative-config"
KNOWN = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
LOOKUPS = ("lookup_min", "lookup_max")
NGRAM, NGRAM_GPU, DRAFT_MODEL = "ngram", "ngram_gpu", "draft_model"
MTP, NEVER = "mtp", "never"
HEADS = (EAGLE, EAGLE3, MTP)


def speculative_of(
    text: str | None, model: ModelSpec, release: Release, folders: Sequence[Path] = ()
) -> Speculative | None:
    """The speculation of an option's value, a JSON object, beside a model; None without one. Raises
    InputError for what is not modelled, and for a drafter that vLLM refuses for the model.
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
    method, name = _method(values), values.get("model")
    if method in (NGRAM, NGRAM_GPU):
        on_gpu = method == NGRAM_GPU or release.looks_up_on_gpu
        return _ngram(values, num_drafts, on_gpu=on_gpu)
    if method == MTP:
        return _own_layers(model, num_drafts)
    if not name:
        raise _does_not_start(f"method={method} needs a model that drafts")
    if method in HEADS:
        _check_states(method, model, release)
        return eagle_of(method, str(name), num_drafts, model, release)
    return _draft_model(str(name), model, num_drafts, release, folders)


def _own_layers(model: ModelSpec, num_drafts: int) -> Speculative:
    """Drafts by layers of the model's own checkpoint."""
    from testbed.speculation.heads import Heads

    if not model.drafts_itself:
        raise _does_not_start(f"{model.name} has no layers that draft (MTP)")
    count = f"speculation.num_drafts={num_drafts}"
    return Speculative(Heads(num_drafts), ("speculation=heads", count))


def _check_states(method: str, model: ModelSpec, release: Release) -> None:
    """Raise InputError for EAGLE-3 beside a model whose class gives it no hidden states."""
    since = model.eagle3_since
    if method != EAGLE3 or since is None:
        return
    if since == NEVER:
        raise _does_not_start(f"{model.name} gives EAGLE-3 no hidden states", f"method {EAGLE}")
    if version_of(release.number) < version_of(since):
        raise _does_not_start(
            f"{model.name} gives EAGLE-3 no hidden states in vLLM {release.number}",
            f"it does in {since}",
        )


def _draft_model(
    name: str, model: ModelSpec, num_drafts: int, release: Release, folders: Sequence[Path]
) -> Speculative:
    """Drafts by a whole model, which must have the tokens of the one that serves."""
    from testbed.speculation.draft_model import (
        DraftModel,
        drafters_of_vocabulary,
        vocabulary_problem,
    )

    named = _named(name, model, folders, release)
    drafter = _whole_drafter(name, named)
    if problem := vocabulary_problem(drafter, model):
        remedy = drafters_of_vocabulary(model)
        if release.maps_vocabularies:
            remedy += "; vLLM starts with use_heterogeneous_vocab, which is not modelled"
        raise _does_not_start(f"model={name} {problem}", remedy)
    count = f"speculation.num_drafts={num_drafts}"
    words = "speculation=draft_model", f"speculation.drafter={named.option}", count
    return Speculative(DraftModel(num_drafts, drafter), words)


def _named(name: str, model: ModelSpec, folders: Sequence[Path], release: Release) -> Named:
    """The model that a command's drafter names; raises InputError for one without a shape."""
    from testbed.speculation.draft_model import drafters_of_vocabulary

    try:
        return model_named(name, folders, transformers=release.transformers)
    except ShapelessModel as error:
        remedy = f'give as "model" the folder of its config.json; {drafters_of_vocabulary(model)}'
        raise _refusal(f"model={name}: {error.problem}", remedy) from None


def _whole_drafter(name: str, named: Named) -> ModelSpec:
    """The shape of a whole model that drafts; of a folder that which its config.json says."""
    shape = named.shape
    if named.config is None:
        drafter = replace(read_model(named.option), max_len=shape.max_len)
        is_quantised = drafter != shape
    elif named.config.suffix != ".json":
        raise _refusal(f"model={name}: is imported, which no drafter is", "give its folder")
    else:
        drafter, is_quantised = shape, shape.weight_bits is not None
    if is_quantised:
        raise _refusal(f"model={name}: quantised weights of a drafter are not modelled")
    if drafter.drafts_itself:
        raise _refusal(
            f"model={name}: vLLM drafts with its layers for that (MTP) alone, which is not modelled"
        )
    return drafter


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
    try:
        on_cpu = NGram(**options)  # which checks the lengths for both
    except InputError as error:
        raise _does_not_start(str(error)) from None
    if on_gpu:
        words = f"speculation={NGRAM_GPU}", f"speculation.num_drafts={num_drafts}"
        return Speculative(NGramGpu(num_drafts=num_drafts), words)
    looked_up = [f"speculation.{name}={value}" for name, value in options.items()]
    return Speculative(on_cpu, ("speculation=ngram", *looked_up))


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


def _does_not_start(problem: str, remedy: str = "") -> DoesNotStart:
    return DoesNotStart(key=f"{SERVE}: {OPTION}", problem=problem, remedy=remedy)


def _refusal(problem: str, remedy: str = "") -> InputError:
    return InputError(key=f"{SERVE}: {OPTION}", problem=problem, remedy=remedy)
