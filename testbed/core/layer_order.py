"""The order of a model's layers, a letter each, as far as layers differ in what they cache.

f: full attention, w: with a window, c: of chunks, s: with a state; -: a feed-forward network alone,
e: experts alone, as Nemotron-H has them.
"""

from itertools import cycle, islice
from typing import TYPE_CHECKING

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from testbed.core.specs import ModelSpec

ALONE = "-e"  # layers that cache nothing


def period_of(letters: str) -> str:
    """The shortest letters whose repetition begins with all of these."""
    return next(
        letters[:length]
        for length in range(1, len(letters) + 1)
        if repeated(letters[:length], len(letters)) == letters
    )


def repeated(period: str, count: int) -> str:
    """So many letters of a repeated period."""
    return "".join(islice(cycle(period), count))


def letters_of(model: "ModelSpec") -> str:
    """A letter for each layer of a model. Raises InputError if its shape does not say the order of
    layers that differ, or says another number of them.
    """
    groups = model.groups
    if model.layer_order is None:
        if len(groups) == 1 and model.chunks is None:
            return ("w" if groups[0].window else "f") * model.num_layers
        raise InputError(
            key=f"model {model.name}",
            problem="its shape does not say in which order its different layers stand",
            remedy="give a folder with its config.json",
        )
    letters = repeated(model.layer_order, model.num_layers + num_alone(model))
    counts = {group.name: group.num_layers for group in groups}
    found = {"window": letters.count("w"), "state": letters.count("s")}
    if any(counts.get(name, 0) != count for name, count in found.items()):
        raise InputError(
            key=f"model {model.name}: layer_order",
            value=model.layer_order,
            problem=f"has {found['window']} layers of windows and {found['state']} of states",
            remedy=f"it must have {counts.get('window', 0)} and {counts.get('state', 0)}",
        )
    return letters


def num_alone(model: "ModelSpec") -> int:
    """Layers that are a feed-forward network alone, if the order of a model has any."""
    is_apart = any(letter in ALONE for letter in model.layer_order or "")
    return (model.num_ffn_layers or 0) if is_apart else 0
