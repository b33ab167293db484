"""Model shapes from Hugging Face's config.json."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import yaml

from testbed.core.config_model import read
from testbed.core.errors import InputError
from testbed.core.hf_fields import TRANSFORMERS, Fields, supported, types, types_with
from testbed.core.hf_layers import (
    chunks_of,
    dtype_bytes,
    experts_in,
    experts_of,
    latent_of,
    letters_of_blocks,
    order_of,
    pattern_of,
    states_of,
    window_of,
)
from testbed.core.hf_quantization import QUANTIZATION
from testbed.core.hf_rope import lengths_of
from testbed.core.hf_weights import check_encoder, kv_bytes, with_weights
from testbed.core.specs import ModelSpec

READ_PARTS = ("text_config", "vision_config")
SIZES = {"model_type", "hidden_size", "d_model", "num_hidden_layers"}  # of a part with weights
BOTH_WAYS = "use_bidirectional_attention"
# Types of vision transformers whose networks have a gate
GATED_TOWERS = ("pixtral", "gemma4_vision", "qwen2_5_vl", "qwen2_5_vl_vision")
MERGED, DEEPSTACK = 4, 3  # patches of a token, and layers of Qwen3-VL whose outputs are merged too
BESIDE = "hf_quant_config.json"  # of a checkpoint of ModelOpt's


def vision_params(config: Mapping[str, Any]) -> int | None:
    """Weights of the matrices of a vision transformer; None without one, or if its file does not
    say its size.

    A layer has four matrices of attention and two of a feed-forward network, or three if it is
    gated; patches are embedded by one more. Of projectors only a Qwen's mergers are counted.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    if "embed_dim" in vision:  # Qwen2-VL's, whose hidden_size is that of the text
        hidden, ratio = vision["embed_dim"], vision.get("mlp_ratio", 4)
        vision = {**vision, "hidden_size": hidden, "intermediate_size": hidden * ratio}
    names = (
        ("hidden_size", "vt_hidden_size"),
        ("intermediate_size", "vt_intermediate_size"),
        ("depth", "num_hidden_layers", "vt_num_hidden_layers"),
    )
    sizes = [next((vision[key] for key in keys if key in vision), 0) for keys in names]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    hidden, ffn, layers = sizes
    gates = 3 if vision.get("model_type", config.get("model_type")) in GATED_TOWERS else 2
    patch = vision.get("patch_size", 0)
    sides = patch if isinstance(patch, list) else [patch, patch]
    sides = [*sides, vision.get("temporal_patch_size", 1)]
    if not all(isinstance(side, int) for side in sides):
        return None
    layers_and_patches = layers * hidden * (4 * hidden + gates * ffn) + 3 * prod(sides) * hidden
    return int(layers_and_patches + _merger_params(config, vision, hidden))


def _merger_params(config: Mapping[str, Any], vision: Mapping[str, Any], hidden: int) -> int:
    """Weights of a Qwen's mergers, each of two matrices between the vectors of MERGED patches and
    the text's: one behind the tower, and Qwen3-VL's behind some of its layers (deepstack).
    """
    kind, text = str(config.get("model_type")), config.get("text_config", config)
    if kind not in types()["merging"]:
        return 0
    merged = MERGED * hidden
    out = vision.get("out_hidden_size", text.get("hidden_size"))
    usual = range(DEEPSTACK) if kind.startswith("qwen3_vl") else ()
    count = 1 + len(vision.get("deepstack_visual_indexes", usual))
    return count * merged * (merged + out) if isinstance(out, int) else 0


def vision_heads(config: Mapping[str, Any], kind: str) -> int | None:
    """Heads of a vision tower that vLLM's classes divide among GPUs; None without one, if its file
    does not say them, and for those that it loads whole on each GPU (Gemma-4's).
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping) or kind in types_with("whole_tower"):
        return None
    keys = ("num_heads", "num_attention_heads", "vt_num_attention_heads")
    heads = next((vision[key] for key in keys if key in vision), None)
    return heads if isinstance(heads, int) and heads > 0 else None


def drafts_itself(text: Mapping[str, Any], kind: str) -> bool:
    """True if vLLM finds layers that draft tokens in a checkpoint of this type: as many as a key of
    its file says, or some by default for a type whose class has one.
    """
    if kind not in types_with("mtp"):
        return False
    if kind == "nemotron_h":  # one layer of attention with one of experts
        blocks = letters_of_blocks(text.get("mtp_layers_block_type") or ["attention", "moe"])
        is_usual = text.get("mtp_hybrid_override_pattern", "*E") == blocks == "*E"
        return is_usual and text.get("num_nextn_predict_layers") == 1
    named = "mtp_num_hidden_layers" if kind.startswith("qwen3_5") else "num_nextn_predict_layers"
    return bool(text.get(named, kind not in types_with("counted_mtp")))


def text_of(
    config: Mapping[str, Any], *, transformers: int = TRANSFORMERS
) -> tuple[dict[str, Any], str]:
    """The part of a config.json that describes the language model, with a supported name of its
    type, and the name of its class in Transformers; of a multimodal model, of its text_config.
    transformers: as of Fields.
    """
    kind, inner = config.get("model_type"), config.get("text_config")
    text = dict(config)
    if isinstance(inner, Mapping):
        outer = {key: config[key] for key in types()["outer"] if key in config}
        named = types()["text"].get(kind)
        text = {**outer, **({"model_type": named} if named else {}), **inner}
        text |= _tied_around(config, inner) if transformers >= TRANSFORMERS else {}
        if outer.get(QUANTIZATION):
            text[QUANTIZATION] = outer[QUANTIZATION]  # vLLM reads that of the text behind it
    else:
        text.pop("vision_config", None)
        if kind in types()["flat"]:
            text["model_type"] = types()["text"][kind]
    named = str(text.get("model_type"))
    text["model_type"] = types()["alias"].get(named, named)
    return text, types()["class"].get(named, named)


def _tied_around(config: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """The tie_word_embeddings that vLLM gives to the text of a file: since Transformers 5 that of
    the file around it, or of its class (VllmConfig.with_hf_config). Empty: that of the text.
    """
    kind, key = str(config.get("model_type")), "tie_word_embeddings"
    if kind in types()["tied_by_text"]:
        return {}
    outer = config.get(key, types()["tied_around"].get(kind))
    if kind in types()["tied_by_either"]:
        outer = bool(outer) or bool(inner.get(key))
    return {} if outer is None else {key: outer}


def unsized_parts(config: Mapping[str, Any], shape: ModelSpec) -> list[str]:
    """Encoders and other models that a file describes beside its text, and whose weights are not
    known here.
    """
    parts = []
    if isinstance(config.get("vision_config"), Mapping) and not shape.vision_params:
        parts.append("the vision tower, whose sizes vision_config does not give in full")
    for key, value in config.items():
        is_other = key.endswith("_config") and key not in READ_PARTS
        if is_other and isinstance(value, Mapping) and not SIZES.isdisjoint(value):
            parts.append(f"the model of {key}")
    return parts


def uncounted_parts(path: Path, shape: ModelSpec) -> str:
    """Parts that a config.json names beside its language model, and no weight of the shape stands
    for.
    """
    if path.suffix == ".yaml":
        return ""
    config = json.loads(path.read_text(encoding="utf-8"))
    parts = unsized_parts(config, shape)
    if shape.vision_params and config.get("model_type") not in types()["merging"]:
        parts.append("the projector of images")
    if text_of(config)[0].get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers"):
        parts.append("layers for speculation, which are loaded only to speculate")
    return "; ".join(parts)


def model_of(path: Path, name: str | None = None, *, transformers: int = TRANSFORMERS) -> ModelSpec:
    """The shape in a config.json, named `name` or after its file; one with a ModelSpec's fields is
    read unchanged. transformers: as of Fields.
    """
    config = contents_of(path)
    if "num_layers" in config and "ffn_matrices" in config:
        return read(
            ModelSpec,
            {key: value for key, value in config.items() if not key.startswith("_")},
            str(path),
        )
    shape, _ = _described(config, path, name, transformers=transformers)
    return shape


def values_of_class(path: Path) -> dict[str, Any]:
    """The values of a config.json's shape that the file does not say, and its class does."""
    config = contents_of(path)
    if "num_layers" in config and "ffn_matrices" in config:
        return {}
    return _described(config, path, None)[1].from_class


def contents_of(path: Path) -> dict[str, Any]:
    """The values of a config.json, with ModelOpt's types of weights if they are in the file beside
    it, or of a YAML file. Raises InputError for another content.
    """
    config = _values_in(path)
    beside = path.with_name(BESIDE)
    if config.get(QUANTIZATION) or not beside.exists():
        return config
    values = _values_in(beside)
    producer = values.get("producer")
    is_named = isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    if not is_named and values.get("quant_method") != "modelopt":
        raise InputError(
            key=beside,
            problem="names no modelopt as its producer, without which servers do not read it",
            remedy="add it, or leave the file out for weights of the model's type",
        )
    return {**config, QUANTIZATION: {"quant_method": "modelopt", **values}}


def _values_in(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(
            key=path, problem="not a JSON file", remedy="give the config.json of a model"
        ) from error
    if not isinstance(config, dict):
        raise InputError(
            key=path, problem="not a JSON object", remedy="give the config.json of a model"
        )
    return config


def _described(
    config: Mapping[str, Any], path: Path, name: str | None, *, transformers: int = TRANSFORMERS
) -> tuple[ModelSpec, Fields]:
    """The shape that a config.json describes, and what was read of it."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise InputError(
            key=f"{path}: model_type",
            value=repr(kind),
            problem="must be text",
            remedy="give the config.json of a model",
        )
    text, class_name = text_of(config, transformers=transformers)
    if text["model_type"] not in supported():
        listed = ", ".join((*supported(), *types()["text"], *types()["alias"]))
        raise InputError(
            key=path,
            problem=f"model_type {kind!r} is none of the supported model types ({listed})",
            remedy="write the ModelSpec by hand",
        )
    fields = Fields(text, path, class_name, transformers=transformers)
    eagle3 = types()["eagle3"]
    try:
        shape = shape_of(name or _called(config, path), fields, text["model_type"])
        has_images = isinstance(config.get("vision_config"), Mapping)
        if has_images:
            check_encoder(fields, kind)
        masks = has_images and text["model_type"] in types_with("masked_images")
        masks = masks or fields.get(BOTH_WAYS) == "vision"
        shape = replace(
            shape,
            vision_params=vision_params(config),
            vision_heads=vision_heads(config, text["model_type"]),
            masks_images=masks or None,
            drafts_itself=drafts_itself(text, kind) or None,
            eagle3_since=eagle3.get(kind, eagle3.get(text["model_type"])),
        )
        return shape, fields
    except InputError as error:
        if error.key.startswith(str(path)):
            raise
        raise error.within(path) from None


def _called(config: Mapping[str, Any], path: Path) -> str:
    named = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return (
        named or (path.parent.name if path.stem == "config" else path.stem) or path.stem
    ).lower()


# Traits that a shape has by its type alone, and the list of these types
TRAITS = {
    "gated_attention": "gated",
    "has_sinks": "sinks",
    "repeats_embedding": "whole_embedding",
    "caps_logits": "capped",
    "needs_experts": "experts_on_stages",
    "needs_range": "no_float16",
}


def _traits_of(kind: str) -> dict[str, Any]:
    return {trait: True for trait, types_of in TRAITS.items() if kind in types_with(types_of)}


def shape_of(name: str, fields: Fields, kind: str) -> ModelSpec:
    """The shape that the values of a config.json describe, of a supported model type.

    Some types have two feed-forward matrices, all others gate, up and down, and may have fewer key
    and value heads than query heads. Weights of norms, biases and output gates are not counted.
    """
    pattern = pattern_of(fields, kind)
    layers = pattern["M"] + pattern["*"] if pattern else fields.whole("num_hidden_layers")
    hidden = fields.whole("hidden_size")
    _check_parts(fields, kind, hidden)
    dtype = dtype_bytes(fields)
    lengths = lengths_of(fields, kind)
    has_windows, has_head = kind not in ("opt", "nemotron_h"), kind in types_with("never_tied")
    shape = ModelSpec(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        **_heads_of(fields, kind, hidden),
        **_feed_forward(fields, kind, pattern),
        vocab_size=fields.whole("vocab_size"),
        max_len=lengths.longest,
        tied_embedding=bool(fields.get("tie_word_embeddings", False)) and not has_head,
        dtype_bytes=dtype,
        kv_dtype_bytes=kv_bytes(fields, of_latents=kind in types_with("latent")),
        shared_kv=True if fields.get("attention_k_eq_v") else None,
        rope=lengths.rope,
        window=window_of(fields, kind, layers) if has_windows else None,
        chunks=chunks_of(fields, kind, layers),
        latent=latent_of(fields, kind) if kind in types_with("latent") else None,
        experts=experts_in(fields, pattern) or experts_of(fields, kind),
        states=states_of(fields, kind, pattern, layers, dtype),
        repeats_vocabulary=types()["whole_vocabulary"].get(kind),
        **_traits_of(kind),
    )
    shape = with_weights(_with_unlike_layers(shape, fields, kind), fields, kind)
    fields.check_memory()
    return shape


def _with_unlike_layers(shape: ModelSpec, fields: Fields, kind: str) -> ModelSpec:
    """The shape with the order of its layers, if they differ, and the routing of its experts, if it
    has any.
    """
    if shape.experts is not None:
        shape = _routed(shape, fields, kind)
    if len(shape.groups) == 1 and not shape.chunks:
        return shape
    return replace(shape, layer_order=order_of(fields, kind, shape.num_layers))


def _routed(shape: ModelSpec, fields: Fields, kind: str) -> ModelSpec:
    """The shape of a mixture of experts with what vLLM's classes make of them."""
    is_uneven = fields.get("norm_topk_prob", True) is False
    return replace(
        shape,
        routes_apart=True if is_uneven or kind in types_with("apart_routing") else None,
        copies_shared=True if kind in types_with("copied_shared") else None,
    )


def _check_parts(fields: Fields, kind: str, hidden: int) -> None:
    if fields.get("is_causal") is False or fields.get(BOTH_WAYS) not in (None, False, "vision"):
        key = BOTH_WAYS if fields.is_given(BOTH_WAYS) else "is_causal"
        raise fields.refusal(key, "attention to later tokens is not supported")
    _check_embedding(fields, kind, hidden)
    _check_per_layer_parts(fields)
    _check_tied(fields, kind)


def _heads_of(fields: Fields, kind: str, hidden: int) -> dict[str, Any]:
    heads = fields.whole("num_attention_heads")
    return {
        "num_heads": heads,
        "num_kv_heads": num_kv_heads(fields, kind, heads),
        "head_size": head_size(fields, kind, hidden, heads),
    }


def _feed_forward(fields: Fields, kind: str, pattern: Mapping[str, int] | None) -> dict[str, Any]:
    return {
        "ffn_size": _ffn_size(fields, kind),
        "ffn_matrices": 2 if kind in types_with("two_matrices") else 3,
        "num_ffn_layers": pattern["-"] + pattern["E"] if pattern else None,
    }


def num_kv_heads(fields: Fields, kind: str, heads: int) -> int:
    """Heads of K and V, of a Gemma-4 those of its layers of full attention."""
    if kind in types_with("no_shared_heads") and fields.get("num_key_value_heads", heads) != heads:
        raise fields.refusal("num_key_value_heads", "a release reads it, and another does not")
    if kind in (*types_with("no_shared_heads"), *types_with("latent")):
        return heads
    count = fields.whole("num_key_value_heads", heads)
    if kind != "gemma4_text":
        return count
    of_full = fields.whole("num_global_key_value_heads", count)
    return of_full if fields.get("attention_k_eq_v", False) else count


def _ffn_size(fields: Fields, kind: str) -> int:
    """Columns of a dense feed-forward network; one of experts alone may not say it."""
    if kind == "llama4":
        return fields.whole("intermediate_size_mlp", 16384)
    if kind == "qwen3_5_moe":
        return fields.whole("intermediate_size", fields.whole("moe_intermediate_size"))
    size = fields.whole("ffn_dim" if kind == "opt" else "intermediate_size")
    usual = 4 * fields.whole("hidden_size")
    if kind == "phi" and (size, fields.get("n_inner", usual)) != (usual, usual):
        raise fields.refusal("intermediate_size", "a release has n_inner, or 4 times hidden_size")
    return size


def _check_per_layer_parts(fields: Fields) -> None:
    """Raise InputError for layers that share K and V, or have embeddings of their own (Gemma-4's
    E2B and E4B).
    """
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input", "use_double_wide_mlp"):
        if fields.get(key, 0):
            raise InputError(
                key=f"{fields.path}: {key}",
                value=repr(fields.get(key)),
                problem="is not supported",
                remedy=(
                    "write the ModelSpec by hand: layers that share K and V cache none of their own"
                ),
            )


def _check_tied(fields: Fields, kind: str) -> None:
    """Raise InputError for an output projection of its own, with which most releases do not start:
    the newest starts without it, or, of the first Gemma, with it.
    """
    if kind in types_with("always_tied") and not fields.get("tie_word_embeddings", False):
        problem = "releases differ: some start with an output projection of its own, others do not"
        raise fields.refusal("tie_word_embeddings", problem)


def _check_embedding(fields: Fields, kind: str, hidden: int) -> None:
    """Raise InputError for an OPT whose embedding is narrower than its layers."""
    if kind == "opt" and fields.get("word_embed_proj_dim", hidden) != hidden:
        raise InputError(
            key=fields.path,
            problem="word_embed_proj_dim differs from hidden_size (OPT-350M): not supported",
        )


def head_size(fields: Fields, kind: str, hidden: int, heads: int) -> int:
    """The size of a query head; of a latent attention, its part without position, of Gemma-4 that
    of full attention.
    """
    if kind in types_with("latent"):
        return fields.whole("qk_nope_head_dim")
    if kind == "gemma4_text":
        return fields.whole("global_head_dim", 512)
    key = "head_dim" if fields.get("head_dim") is not None else "attention_head_dim"
    if fields.get(key) is not None:
        size = fields.whole(key)
        if kind in types_with("equal_heads") and size * heads != hidden:
            raise fields.refusal(key, "a release of vLLM has hidden_size / heads instead")
        return size
    if hidden % heads:
        raise InputError(
            key=fields.path,
            problem=f"hidden_size {hidden} is no multiple of {heads} heads",
            remedy="set head_dim",
        )
    return hidden // heads
