"""Reads mappings into frozen dataclasses: every key must be known, every value of its type and
range.
"""

import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from testbed.core.errors import InputError

T = TypeVar("T")
# S; whole picoseconds in 64 bits end at 9.2 million, and what has arrived must still be served
LAST_S = 9_000_000
MAX_GIB = 1 << 20  # of any memory of a server
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
ABOVE_ZERO = {
    "attainable",
    "attention_bandwidth",
    "attention_scale",
    "block_size",
    "byte_kv_bandwidth",
    "byte_window_bandwidth",
    "dtype_bytes",
    "ffn_matrices",
    "ffn_size",
    "fp16_flops",
    "head_size",
    "hidden_size",
    "host_bandwidth",
    "linear_flops",
    "link_bandwidth",
    "max_batch_size",
    "max_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_padded_len",
    "memory_bandwidth",
    "memory_bytes",
    "num_blocks",
    "num_gpus",
    "num_heads",
    "num_kv_heads",
    "num_layers",
    "num_seqs",
    "prefill_flops",
    "stop_at_latency",
    "time_to_live_s",
    "tpot_s",
    "ttft_s",
    "vocab_size",
    "weight_bandwidth",
}
SHARES = {  # at most 1
    "attainable",
    "attention_bandwidth",
    "byte_kv_bandwidth",
    "byte_window_bandwidth",
    "linear_flops",
    "memory_utilization",
    "new_probability",
    "prefill_flops",
    "repeated_read",
    "top_p",
    "watermark",
    "weight_bandwidth",
}
LEAST = {  # a data sheet in another unit, such as GB/s, is orders of magnitude below
    "memory_bandwidth": (1e9, "bytes/s"),
    "fp16_flops": (1e9, "FLOP/s"),
    "host_bandwidth": (1e6, "bytes/s"),
    "link_bandwidth": (1e6, "bytes/s"),
    "read_bandwidth": (1e5, "bytes/s"),
    "write_bandwidth": (1e5, "bytes/s"),
    "memory_bytes": (1 << 20, "bytes"),
}


def read(cls: type[T], values: Any, key: str = "") -> T:
    """The dataclass `cls` from a mapping of its fields; `key` is the mapping's own dotted name, for
    messages.

    A `_target_` that names the class itself is allowed. Raises InputError for an unknown or missing
    key and for a value of the wrong type or out of range.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"{key}={values!r}: must be a group of values; give {key}.{fields(cls)[0].name}=..."
        )  # type: ignore[arg-type]
    named = f"{cls.__module__}.{cls.__qualname__}"
    if values.get("_target_", named) != named:
        raise InputError(
            f"{key}._target_={values['_target_']}: only {named} is allowed here (change its values)"
        )
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    entries = {str(name): value for name, value in values.items() if name != "_target_"}
    for unknown in (name for name in entries if name not in known):
        raise InputError(no_key(dotted(key, unknown), [dotted(key, name) for name in known]))
    hints = get_type_hints(cls)
    for name, field in known.items():
        if name not in entries and field.default is MISSING and field.default_factory is MISSING:
            raise InputError(f"{dotted(key, name)} is not given; say {dotted(key, name)}=...")
    return cls(
        **{name: typed(hints[name], value, dotted(key, name)) for name, value in entries.items()}
    )


def typed(hint: Any, value: Any, key: str) -> Any:
    """The value as the type that `hint` declares, or an InputError that names `key`. Numbers keep
    their own type.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, key)
    if origin is Literal:
        if value not in inner:
            raise InputError(f"{key}={value!r}: must be {' or '.join(map(str, inner))}")
        return value
    if origin is tuple:
        return _row(inner, value, key)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _table(inner[1], value, key)
    if isinstance(hint, type) and not isinstance(value, hint) and hasattr(hint, "from_values"):
        return hint.from_values(value, key)
    if is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else read(hint, value, key)
    if hint in KINDS:
        check_kind(hint, value, key)
        check_range(value, key)
    return value


def check_kind(kind: type, value: Any, key: str) -> None:
    """A plain value must be of the declared kind: no text for a number, no number or text for true
    and false.
    """
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{key}={value!r}: must be {KINDS[kind]}")


def check_range(value: Any, key: str) -> None:
    """No number may be negative or not finite; some must be above zero, shares at most 1, data
    sheets in their unit.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    name = key.rpartition(".")[2]
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{key}={value}: must be a finite number, at least 0")
    if name in ABOVE_ZERO and value == 0:
        raise InputError(f"{key}=0: must be above 0")
    least, unit = LEAST.get(name, (0, ""))
    if value < least:
        raise InputError(f"{key}={value:g}: must be at least {least:,.0f} {unit}")
    if name in SHARES and value > 1:
        raise InputError(f"{key}={value:g}: is a share, at most 1")
    if name.endswith("_s") and value > LAST_S:
        raise InputError(f"{key}={value}: exceeds the maximum of {LAST_S:,} s")
    if name.endswith("_gib") and value > MAX_GIB:
        raise InputError(f"{key}={value}: exceeds the maximum of {MAX_GIB:,} GiB")


def no_key(key: str, known: Iterable[str]) -> str:
    """The refusal of a key that nothing reads, with the known key that is most like it."""
    near = nearest(key, known)
    hint = f"did you mean {near}?" if near else "remove it;"
    return f"no key {key!r}: nothing reads it; {hint} testbed run --values shows all keys"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that is most like this one: of the same last part, in the same group, or as a
    whole.
    """
    names = list(known)
    group, _, last = key.rpartition(".")
    same = [name for name in names if name.rpartition(".")[2] == last]
    in_group = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
    close = [in_group[one] for one in get_close_matches(last, in_group, 1)]
    alike = [name for name in names if ("." in name) == ("." in key)]
    return next(iter([*same, *close, *get_close_matches(key, alike, 1, 0.8)]), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question, or nothing where no known name is like this one."""
    names = list(known)
    longer = [
        one for one in names if name and one.startswith((f"{name}-", f"{name}_"))
    ]  # h100 begins h100-80gb
    close = longer or get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def dotted(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name


def _one_of(hints: tuple[Any, ...], value: Any, key: str) -> Any:
    if value is None and type(None) in hints:
        return None
    wanted = [hint for hint in hints if hint is not type(None)]
    for hint in wanted[1:]:
        try:
            return typed(hint, value, key)
        except InputError:
            continue
    return typed(wanted[0], value, key)


def _row(hints: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{key}={value!r}: must be a list of values")
    if hints[-1:] == (...,):
        hints = hints[:1] * len(value)
    if len(value) != len(hints):
        raise InputError(f"{key}={list(value)}: must have {len(hints)} values")
    return tuple(typed(hint, one, key) for hint, one in zip(hints, value, strict=True))


def _table(hint: Any, value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{key}={value!r}: must be a table of values by name; give {key}.NAME=...")
    return {name: typed(hint, one, dotted(key, str(name))) for name, one in value.items()}
