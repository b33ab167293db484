"""Models by names that others give them: without an owner, a training, a date or a quantiser."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from testbed.core.hf_linears import Linear
from testbed.core.hf_schemes import scheme_of

# Ends of a name that change neither the shape nor the weights' type.
TRAINING = re.compile(
    r"-(instruct|chat|hf|it|base|pt|thinking|qat|preview|sft|dpo|bf16|\d{4}|v1(\.\d+)?)$"
)
NVIDIA = "nvidia"
ANY_LAYER = Linear("o_proj", ("o_proj",), 0)
VERSION = re.compile(r"-(instruct|chat)-(v\d+(\.\d+)?)$")


class Name(NamedTuple):
    """Our name of a model, with what its own name changes of the shape; None: nothing.

    max_len: the longest sequence in tokens. quantization: of the layers' weights, as a config.json
    would have it, and whether they multiply activations in FP8 (fp8_products).
    """

    model: str
    max_len: int | None = None
    quantization: Mapping[str, Any] = MappingProxyType({})
    fp8_products: bool | None = None

    @property
    def weight_bits(self) -> float | None:
        """Bits of a weight of the layers, with its share of scales; None: those of the model."""
        bits_of = scheme_of(self.quantization) if self.quantization else None
        return bits_of(ANY_LAYER) if bits_of else None


class Quantised(NamedTuple):
    """The quantization of weights that a word of a model's name says.

    bits: the least and the most of a weight, with its share of scales. fp8_products: as of Name.
    end: of published names of such models that name_of reads; empty: it reads none.
    """

    word: str
    bits: tuple[float, float]
    fp8_products: bool
    end: str


def quantised_by_name(hf_name: str) -> Quantised | None:
    """The quantization that a name says in any place; None: it says none."""
    short = hf_name.rstrip("/").rpartition("/")[2].lower()
    for row in _table()["said"]:
        if match := re.search(f"(?<![a-z0-9])({row['words']})(?![a-z0-9])", short):
            least, most = row["bits"]
            is_fp8 = row.get("fp8_products", False)
            return Quantised(match[1], (least, most), is_fp8, row.get("end", ""))
    return None


def caches_fp8(hf_name: str) -> bool:
    """True for a quantized model of NVIDIA's: ModelOpt's cache is of FP8 too."""
    return hf_name.lower().startswith(f"{NVIDIA}/") and quantised_by_name(hf_name) is not None


@cache
def _table() -> dict[str, Any]:
    """The table of model_names.toml."""
    path = Path(__file__).with_name("model_names.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def name_of(hf_name: str, models: Sequence[str]) -> Name:
    """A name of Hugging Face as one of ours; as it is, without its owner, if none is meant."""
    whole, same = hf_name.rstrip("/").lower(), _table()["same_shape"]
    if whole in _table()["other_weights"]:
        return Name(hf_name)
    if "/" in whole and whole in same:
        return Name(same[whole]["model"], same[whole].get("max_len"))
    owner, _, short = whole.rpartition("/")
    short = short.removeprefix("meta-")
    short, quantiser = _without_quantiser(short, owner)
    if quantiser and owner == NVIDIA:
        return Name(hf_name)
    model, max_len = _unquantised(short, models)
    quantization = quantiser.get("quantization", {})
    return Name(model, max_len, quantization, quantiser.get("fp8_products"))


def _without_quantiser(short: str, owner: str = "") -> tuple[str, dict[str, Any]]:
    """A name without the end that says how its weights are quantized, and the row of that end;
    empty without one.
    """
    for quantiser in _table()["quantiser"]:
        is_of_owner = quantiser.get("owner", owner) == owner
        if is_of_owner and (ends := re.search(quantiser["ends"], short)):
            return short[: ends.start()], quantiser
    return short, {}


def published_as(model: str, end: str) -> str:
    """A name of weights quantized so, of another name of the model."""
    short = model.rpartition("/")[2]
    return f"RedHatAI/{short[: len(_without_quantiser(short.lower())[0])]}-{end}"


def _unquantised(short: str, models: Sequence[str]) -> tuple[str, int | None]:
    """Our name of a model, and its longest sequence if that is not ours."""
    same, other = _table()["same_shape"], _table()["other_weights"]
    if version := VERSION.search(short):  # mistral-7b-v0.1 has another shape than its successors
        plain = short[: version.start()]
        short = f"{plain}-{version[2]}" if f"{plain}-{version[2]}" in models else plain
    while short not in other:
        if short in same:
            return same[short]["model"], same[short].get("max_len")
        if short in models or not TRAINING.search(short):
            return short, None
        short = TRAINING.sub("", short)
    return short, None
