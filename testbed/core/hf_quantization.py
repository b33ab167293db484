"""Values of a quantization_config that are read, by its method, in the forms that vLLM takes."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from annotated_types import Len
from pydantic import AfterValidator, BeforeValidator, PositiveInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from testbed.core.config_model import refusal_of
from testbed.core.hf_fields import Fields

QUANTIZATION = "quantization_config"
ENDS_OF_RULES = ("-:", "+:")  # layers that are left out, or quantised otherwise
PATTERN = "re:"  # before a name that is one


def pair_of(value: Any) -> Any:
    """The list of two numbers for a text such as "128x128"; any other value as it is."""
    match = re.fullmatch(r"(\d+)x(\d+)", value) if isinstance(value, str) else None
    return [int(part) for part in match.groups()] if match else value


def rule_pattern(rule: str) -> str:
    """The regular expression of a rule of `dynamic`."""
    return rule[2:] if rule.startswith(ENDS_OF_RULES) else rule


def _name(text: str) -> str:
    return _compiled(text, text.removeprefix(PATTERN)) if text.startswith(PATTERN) else text


def _rule(text: str) -> str:
    return _compiled(text, rule_pattern(text))


def _compiled(text: str, pattern: str) -> str:
    """The text. Raises ValueError if the pattern in it is none."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


Names = list[Annotated[str, AfterValidator(_name)]] | None
Block = Annotated[list[PositiveInt], Len(2, 2)] | None  # rows and columns


class _Change(TypedDict, total=False):
    bits: PositiveInt
    group_size: int | None


class _Values(TypedDict, total=False):
    """Values of any method."""

    ignore: Names
    ignored_layers: Names
    modules_to_not_convert: Names
    exclude_modules: Names
    dynamic: dict[Annotated[str, AfterValidator(_rule)], _Change] | None


class _Fp8(_Values, total=False):
    weight_block_size: Block


class _Packed(_Values, total=False):
    """Values of GPTQ and AWQ."""

    bits: PositiveInt
    w_bit: PositiveInt
    group_size: int | None
    q_group_size: int | None
    modules_in_block_to_quantize: list[Any] | None


class _Operand(TypedDict, total=False):
    num_bits: PositiveInt
    group_size: int | None
    block_structure: Annotated[Block, BeforeValidator(pair_of)]


class _Group(TypedDict, total=False):
    targets: Names
    weights: _Operand | None
    input_activations: _Operand | None


class _Compressed(_Values, total=False):
    config_groups: dict[str, _Group]


class _OfModelOpt(_Values, total=False):
    quantized_layers: dict[str, dict[str, Any]] | None


class _ModelOpt(_OfModelOpt, total=False):
    quantization: _OfModelOpt | None


FORMS: Mapping[str, Any] = {
    "fp8": _Fp8,
    "awq": _Packed,
    "gptq": _Packed,
    "compressed-tensors": _Compressed,
    "modelopt": _ModelOpt,
}


def quantization_of(fields: Fields) -> Mapping[str, Any]:
    """The quantization_config, empty without one. Raises InputError for a value of a form that vLLM
    does not take.
    """
    config = fields.get(QUANTIZATION) or {}
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    form = FORMS.get(str(method), _Values)
    try:
        _checker(form).validate_python(config, strict=True)
    except ValidationError as error:
        raise refusal_of(error, form, f"{fields.path}: {QUANTIZATION}") from None
    return config


@cache
def _checker(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
