"""The longest sequence of a Hugging Face config.json, by its rope, as vLLM reads it."""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from testbed.core.hf_fields import Fields, types
from testbed.core.layers import Rope

LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
DECIDES = "model_max_length"  # over the others, though it be larger
UNKNOWN_LENGTH = 2048  # vLLM's, if no key names one
# Ropes whose positions are counted already: in every release, and in those since 0.33.
COUNTED = ("su", "longrope", "llama3")
COUNTED_SINCE = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
PLAIN = ("default", "mrope")  # which have no factor, but one that is given counts
ORIGINAL = "original_max_position_embeddings"


class Lengths(NamedTuple):
    """The longest sequence, and the lengths that differ from it."""

    longest: int
    rope: Rope | None = None


def lengths_of(fields: Fields, kind: str) -> Lengths:
    """The lengths of a file. Raises InputError for a length or a factor that is no number."""
    keys = (DECIDES,) if fields.get(DECIDES) else LENGTHS
    given = [fields.whole(key) for key in keys if fields.get(key) is not None]
    positions = min(given, default=UNKNOWN_LENGTH)
    ropes = _ropes(fields, kind)
    for rope in ropes:
        _check_numbers(fields, kind, rope)
    if "gemma3" in kind or not ropes:
        return Lengths(positions)
    longest = int(positions * _factor(ropes, (*COUNTED, *COUNTED_SINCE)))
    older = _older_length(ropes, positions)
    stretched = Rope(
        usual_len=_unless(longest, _usual_length(fields, ropes)),
        yarn_len=_unless(longest, older),
        is_incomplete=True if older is None else None,
    )
    return Lengths(longest, None if stretched == Rope() else stretched)


def _unless(longest: int, length: int | None) -> int | None:
    return None if length == longest else length


def _type_of(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _check_numbers(fields: Fields, kind: str, rope: Mapping[str, Any]) -> None:
    """Raise InputError for what is no number, or a rope of latents without an original length."""
    if _type_of(rope) in COUNTED:
        return
    for key in ("factor", ORIGINAL):
        value = rope.get(key)
        if value is not None and (not isinstance(value, int | float) or not 0 < value < inf):
            raise fields.refusal("rope_scaling", f"{key}={value!r}: must be a number above 0")
    needs_original = kind in types()["latent"] and _type_of(rope) not in (*COUNTED_SINCE, *PLAIN)
    if needs_original and rope.get(ORIGINAL) is None:
        raise fields.does_not_start("rope_scaling", f"it needs {ORIGINAL}")


def _factor(ropes: Sequence[Mapping[str, Any]], counted: Collection[str]) -> float:
    """The factor of all layers: the last one that is given, as vLLM has it. A null is 1."""
    factors = [
        rope["factor"] for rope in ropes if _type_of(rope) not in counted and "factor" in rope
    ]
    return 1.0 if not factors or factors[-1] is None else factors[-1]


def _usual_length(fields: Fields, ropes: Sequence[Mapping[str, Any]]) -> int | None:
    """The original length if a rope is LongRoPE, with which vLLM starts by default."""
    originals = [rope.get(ORIGINAL) for rope in ropes if _type_of(rope) == "longrope"]
    if not originals:
        return None
    own: int | None = fields.get(ORIGINAL)
    return originals[-1] if own is None else own


def _older_length(ropes: Sequence[Mapping[str, Any]], positions: int) -> int | None:
    """The longest sequence of older releases, which multiply the original length of YaRN; None if
    a YaRN rope lacks it.
    """
    originals: list[Any] = [rope.get(ORIGINAL) for rope in ropes if _type_of(rope) == "yarn"]
    if None in originals:
        return None
    return int([positions, *originals][-1] * _factor(ropes, COUNTED))


def _ropes(fields: Fields, kind: str) -> list[Mapping[str, Any]]:
    """The ropes of a file: one, or one for each kind of layers; else its class's."""
    of_class = types()["rope"].get(kind) or types()["rope"].get(fields.class_name)
    rope = fields.get("rope_scaling") or fields.get("rope_parameters") or of_class
    if rope is None:
        return []
    if not isinstance(rope, Mapping):
        raise fields.refusal("rope_scaling", "must be a table of values by name")
    nested = [value for value in rope.values() if isinstance(value, Mapping)]
    _check_rope(fields, kind, rope)
    return nested or [rope]


def _check_rope(fields: Fields, kind: str, rope: Mapping[str, Any]) -> None:
    """Raise InputError for a rope that the class of a type does not take, or not without a key."""
    allowed = types()["rope_types"].get(kind)
    name = _type_of(rope)
    if allowed and name not in allowed:
        raise fields.does_not_start("rope_scaling", f"{name} is none of {allowed}")
    needed = [] if rope == types()["rope"].get(kind) else types()["rope_keys"].get(kind, [])
    missing = next((key for key in needed if key not in rope), None)
    if missing is not None:
        raise fields.does_not_start("rope_scaling", f"it needs {missing}")
