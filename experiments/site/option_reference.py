"""The option reference of the documentation site, from the models and the built-in classes.

`python -m testbed.experiments.site.option_reference` prints the page, the site has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Unit

from testbed.core.config_model import field_hints, marks_of, plain_hint
from testbed.core.units import MOST
from testbed.experiments.runs.choice_names import CLASS_OF_FILE, CONF, CUSTOM, KEYS, files_of
from testbed.experiments.runs.meanings import SECTIONS, meaning_of
from testbed.experiments.runs.shown_values import comments_in
from testbed.run.constructor_parameters import MUST_BE_GIVEN, parameters_of
from testbed.run.parts import Part, locate

BUILT = (
    "trace",
    "arrivals",
    "policy",
    "eviction",
    "store",
    "load",
    "scheduler",
    "preemption",
    "beams",
    "speculation",
    "acceptance",
    "cost",
)
TYPES = {int: "whole number", float: "number", bool: "true or false", str: "text"}
NO_PARAMETERS = ("_target_", "defaults")
HEAD = """# Options

Every value of a run, with its type, limits, unit and default. `KEY=VALUE` on the command line
sets one; in Python it is `simulate(**{"KEY": value})`. This page is generated from the models in
`testbed/run/config.py` and `testbed/core/specs.py`, and from the constructors of the built-in
classes.
"""


def page() -> str:
    """The page in Markdown."""
    parts = [HEAD]
    for key, cls in SECTIONS.items():
        about = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        parts += [f"## {f'`{key}`' if key else 'Values of a run'}", about, table(key, cls)]
    parts.append(
        "## Groups\n\nA group is chosen with `GROUP=OPTION`; a class of yours is an option "
        "too, as `MODULE:CLASS`."
    )
    for group in BUILT:
        parts += [f"### `{KEYS.get(group, group)}`", *_choices(group)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def table(key: str, cls: type) -> str:
    """The fields of a model as a table."""
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    hints = field_hints(cls)
    for field in fields(cls):
        name, hint = field.name, hints[field.name]
        full = f"{key}.{name}" if key else name
        default = _shown(field.default) if field.default is not MISSING else ""
        if field.default_factory is not MISSING:
            default = "{}"
        lines.append(f"| `{full}` | {values_of(hint)} | {default} | {_text(meaning_of(hint))} |")
    return "\n".join(lines)


def _choices(group: str) -> Iterator[str]:
    """A heading and the parameters of each option of a group."""
    for name, path in files_of(group).items():
        lines = path.read_text(encoding="utf-8").splitlines()
        classes = [match["name"] for match in map(CLASS_OF_FILE.match, lines) if match]
        if name == CUSTOM or not classes:
            continue
        about = " ".join(line.removeprefix("# ") for line in _head(lines))
        yield f"`{group}={name}`: {_text(about)}"
        rows = _parameter_rows(group, path, classes[0])
        if rows:
            yield "\n".join(
                ["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]
            )


def _parameter_rows(group: str, path: Path, target: str) -> list[str]:
    """A row for each plain parameter of an option: the constructor's default, or what the file and
    those that it includes state.
    """
    constructor = locate(target, group)
    declared = parameters_of(constructor).hints
    values, comments = _values_in(path, constructor), _comments_of(path)
    return [
        f"| `{_key(group)}.{name}` | {values_of(declared.get(name, Any))} | "
        f"{_shown(value)} | {_text(comments.get(name, ''))} |"
        for name, value in values.items()
        if not isinstance(value, dict)
    ]


def _values_in(path: Path, constructor: Any) -> dict[str, Any]:
    """The constructor's defaults and what a file states. The files that it includes give values to
    parameters without a default.
    """
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    defaults = dict(parameters_of(constructor).plain_defaults)
    for included in _included_files(path, values):
        stated = _values_in(included, constructor)
        defaults |= {key: stated[key] for key in stated if defaults.get(key) == MUST_BE_GIVEN}
    return defaults | {key: value for key, value in values.items() if key not in NO_PARAMETERS}


def _comments_of(path: Path) -> dict[str, str]:
    """The meanings of the parameters, from the comments of a file and of those that it includes."""
    comments = dict[str, str]()
    for included in _included_files(path, yaml.safe_load(path.read_text(encoding="utf-8"))):
        comments |= _comments_of(included)
    return comments | comments_in(path)


def _included_files(path: Path, values: Mapping[str, Any]) -> Iterator[Path]:
    """The files of `/limits@_here_`, which stands outside the groups, or of another option of the
    group.
    """
    for included in values.get("defaults", ()):
        if isinstance(included, str) and included != "_self_":
            name = included.removeprefix("/").partition("@")[0]
            yield (
                CONF / f"{name}.yaml"
                if included.startswith("/")
                else path.with_name(f"{name}.yaml")
            )


def _head(lines: Sequence[str]) -> Iterator[str]:
    """The first comment of a file."""
    for line in lines:
        if not line.startswith("# "):
            return
        yield line


def _key(group: str) -> str:
    return KEYS.get(group, group).partition("@")[2] or group


def values_of(hint: Any) -> str:
    """The values that an annotation allows: type, limits and unit."""
    plain = plain_hint(hint)
    marks = marks_of(hint)
    inner = marks_of(get_args(plain)[-1]) if get_origin(plain) and get_args(plain) else []
    bounds = [mark for mark in [*marks, *inner] if isinstance(mark, (Ge, Gt, Le))]
    limits = [_limit(mark) for mark in bounds if mark != Le(MOST)]  # 64 bits, of every count
    units = [f"in {mark.unit}" for mark in [*marks, *inner] if isinstance(mark, Unit)]
    null = " or null" if _is_optional(hint) else ""
    return ", ".join([_type_of(plain), *limits, *units]) + null


def _limit(mark: Ge | Gt | Le) -> str:
    if isinstance(mark, Gt):
        return f"above {mark.gt:,.12g}"
    if isinstance(mark, Ge):
        return f"at least {mark.ge:,.12g}"
    return f"at most {mark.le:,.12g}"


def _type_of(plain: Any) -> str:
    origin = get_origin(plain)
    if plain in TYPES:
        return TYPES[plain]
    if origin in (Union, UnionType):
        members = [_type_of(member) for member in get_args(plain)]
        return " or ".join(name for name in members if name != "any")
    if origin is Literal:
        return " or ".join(map(str, get_args(plain)))
    if origin is tuple:
        return "list of values"
    if isinstance(plain, type) and is_dataclass(plain):
        return "a choice of its group" if plain is Part else "a group of values"
    if isinstance(origin, type):
        return "table by name" if hasattr(origin, "items") else "list"
    return "any"


def _is_optional(hint: Any) -> bool:
    members = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return type(None) in members
    return bool(members) and hasattr(hint, "__metadata__") and _is_optional(members[0])


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if value == "???":
        return "(must be given)"
    if isinstance(value, bool):
        return str(value).lower()
    if is_dataclass(value):
        return ""
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(page(), end="")
