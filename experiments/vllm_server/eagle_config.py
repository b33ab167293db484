"""The EAGLE drafter of `--speculative-config`: from its config.json, or as published ones are."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.hf_config import model_of
from testbed.core.model_files import model_names
from testbed.core.specs import ModelSpec
from testbed.experiments.runs.model_naming import name_of
from testbed.experiments.vllm_server.named import cached_config
from testbed.vllm.eagle_classes import class_of_drafter, has_class
from testbed.vllm.releases import Release
from testbed.vllm.server import Speculative

EAGLE, EAGLE3 = "eagle", "eagle3"
USUAL_STATES = 3
LAYERS = "speculation.layers"
PLACE = "vllm serve: --speculative-config"


def eagle_of(
    method: str, name: str, num_drafts: int, model: ModelSpec, release: Release
) -> Speculative:
    """The drafter that a command's model names: the folder of its config.json, or a name, whose
    config.json is looked for in the cache of Hugging Face. Raises InputError for a drafter whose
    layers are not Llama's, for one without a class in vLLM or with states of another size, for a
    whole model, and for one without a config.json beside a model of experts.
    """
    config = Path(name) / "config.json"
    path = config if config.is_file() else cached_config(name)
    if path is None:
        _check_no_model(name)
        _check_dense(name, model)
        return _usual(method, name, num_drafts)
    values = json.loads(path.read_text(encoding="utf-8"))
    sizes, num_states = _sizes(method, path, values), _num_states(values, release)
    _check_class(method, name, values, release)
    is_joined = method == EAGLE3 and num_states > 0
    joined = (is_joined and values.get("target_hidden_size")) or sizes["hidden_size"]
    _check_joined(name, joined, model)
    return _speculative(method, num_drafts, sizes, num_states, ())


def _check_no_model(name: str) -> None:
    """Raise InputError for the name of a whole model that ships."""
    if name_of(name, model_names()).model in model_names():
        raise InputError(
            key=f"{PLACE}: model={name}",
            problem="is a whole model, and no drafter of EAGLE",
            remedy="method draft_model drafts with one",
        )


def _check_class(method: str, name: str, values: Mapping[str, Any], release: Release) -> None:
    """Raise InputError for an architecture without a class in the release."""
    listed = values.get("architectures")
    named = listed if isinstance(listed, list) else []
    wanted = [class_of_drafter(str(one), is_third=method == EAGLE3) for one in named]
    if wanted and not any(has_class(release, one) for one in wanted):
        raise DoesNotStart(
            key=PLACE,
            problem=f"model={name}: vLLM {release.number} has no {', '.join(wanted)}",
            remedy="leave it out to see the server without it",
        )


def _check_joined(name: str, joined: object, model: ModelSpec) -> None:
    """Raise InputError for a drafter that reads hidden states of another size than the model's."""
    if joined != model.hidden_size:
        raise InputError(
            key=f"{PLACE}: model={name}",
            problem=(
                f"reads hidden states of {joined} values (target_hidden_size, else hidden_size), "
                f"and {model.name} has {model.hidden_size}"
            ),
            remedy="give a drafter of this model",
        )


def _check_dense(name: str, model: ModelSpec) -> None:
    """Raise InputError for a model from which a drafter's dense network cannot have its columns."""
    if model.experts is not None and model.latent is None:
        raise InputError(
            key=f"{PLACE}: model={name}",
            problem=f"its config.json is not at hand, and {model.name} has experts",
            remedy='give as "model" the folder of its config.json',
        )


def _usual(method: str, name: str, num_drafts: int) -> Speculative:
    """The drafter that most are: a layer of the model's sizes."""
    from testbed.speculation.eagle import USUAL_VOCABULARY

    sizes = {"vocab_size": USUAL_VOCABULARY} if method == EAGLE3 else {}
    of_vocabulary = f" that drafts {USUAL_VOCABULARY:,} tokens" if sizes else ""
    note = (
        f"the config.json of {name} is not at hand, so that its drafter is one layer of the "
        f'model\'s own sizes{of_vocabulary} (its folder as "model" gives it exactly)'
    )
    return _speculative(method, num_drafts, sizes, USUAL_STATES, (note,))


def _sizes(method: str, path: Path, values: Mapping[str, Any]) -> dict[str, int]:
    shape = model_of(path)
    if not shape.is_plain or shape.ffn_matrices != 3:
        raise InputError(
            key=f"{PLACE}: {path}",
            problem="its layers are not Llama's: such a drafter is not modelled",
            remedy="leave it out to see the server without it",
        )
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_size")
    sizes = {name: int(getattr(shape, name)) for name in names}
    if method == EAGLE3:
        sizes["vocab_size"] = int(values.get("draft_vocab_size") or shape.vocab_size)
    return sizes


def _num_states(values: Mapping[str, Any], release: Release) -> int:
    """The hidden states that EAGLE-3 joins, by vLLM's rule for the file."""
    eagle = values.get("eagle_config") or {}
    if not eagle.get("use_aux_hidden_state", True):
        return 0
    if not release.counts_states:
        return USUAL_STATES
    layers = eagle.get("eagle_aux_hidden_state_layer_ids")
    return int(values.get("num_aux_hidden_states") or len(layers or ()) or USUAL_STATES)


def _speculative(
    method: str,
    num_drafts: int,
    sizes: Mapping[str, int],
    num_states: int,
    notes: tuple[str, ...],
) -> Speculative:
    from testbed.speculation.eagle import DrafterLayers, Eagle, Eagle3

    layers = DrafterLayers(**sizes)
    words = [f"speculation={method}", f"speculation.num_drafts={num_drafts}"]
    words += [f"{LAYERS}.{name}={value}" for name, value in asdict(layers).items() if value]
    if method == EAGLE:
        return Speculative(Eagle(num_drafts, layers), tuple(words), notes)
    words.append(f"speculation.num_states={num_states}")
    speculation = Eagle3(num_drafts, num_states, layers=layers)
    return Speculative(speculation, tuple(words), notes)
