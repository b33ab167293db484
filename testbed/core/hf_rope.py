"""The longest sequence of a Hugging Face config.json, by its rope, as vLLM reads it."""

from collections.abc import Mapping
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
# Ropes whose positions are counted already; releases disagree on yarn.
SCALED_ALREADY = ("su", "longrope", "llama3", "deepseek_yarn")
PLAIN = ("default", "mrope")  # which have no factor, but one that is given counts


class Lengths(NamedTuple):
    """The longest sequence, and the lengths that differ from it."""

    longest: int
    rope: Rope | None = None


def lengths_of(fields: Fields, kind: str) -> Lengths:
    """The lengths of a file. Raises InputError for a length or a factor that is no number."""
    keys = (DECIDES,) if fields.get(DECIDES) else LENGTHS
    given = [fields.whole(key) for key in keys if fields.get(key) is not None]
    positions = min(given, default=UNKNOWN_LENGTH)
    lengths = [_by_rope(fields, kind, rope, positions) for rope in _ropes(fields, kind)]
    if "gemma3" in kind or not lengths:
        return Lengths(positions)
    return lengths[-1]


def _by_rope(fields: Fields, kind: str, rope: Mapping[str, Any], positions: int) -> Lengths:
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "longrope":
        return _by_longrope(fields, rope, positions)
    if rope_type in SCALED_ALREADY:
        return Lengths(positions)
    factor = rope.get("factor", 1.0)
    factor = 1.0 if factor is None else factor
    if not isinstance(factor, int | float) or not factor > 0:
        raise fields.refusal("rope_scaling", f"factor={factor!r}: must be a number above 0")
    original = rope.get("original_max_position_embeddings")
    if rope_type == "yarn":
        return _by_yarn(positions, original, factor)
    if kind in types()["latent"] and original is None and rope_type not in PLAIN:
        raise fields.does_not_start("rope_scaling", "it needs original_max_position_embeddings")
    return Lengths(int(positions * factor))


def _by_longrope(fields: Fields, rope: Mapping[str, Any], positions: int) -> Lengths:
    """LongRoPE: vLLM starts at the original length by default."""
    original = fields.get("original_max_position_embeddings")
    original = rope.get("original_max_position_embeddings") if original is None else original
    usual = original if original != positions else None
    return Lengths(positions, Rope(usual_len=usual) if usual else None)


def _by_yarn(positions: int, original: int | None, factor: float) -> Lengths:
    """YaRN, whose positions older releases multiply from the original length."""
    if original is None:
        return Lengths(positions, Rope(is_incomplete=True))
    extended = int(original * factor)
    return Lengths(positions, Rope(yarn_len=extended) if extended != positions else None)


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
    name = rope.get("rope_type", rope.get("type", "default"))
    if allowed and name not in allowed:
        raise fields.does_not_start("rope_scaling", f"{name} is none of {allowed}")
    needed = [] if rope == types()["rope"].get(kind) else types()["rope_keys"].get(kind, [])
    missing = next((key for key in needed if key not in rope), None)
    if missing is not None:
        raise fields.does_not_start("rope_scaling", f"it needs {missing}")
