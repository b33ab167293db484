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
COUNTED = {"window": "w", "state": "s", "chunks": "c"}  # whose number a shape says
KNOWN = {"f", *COUNTED.values(), *ALONE}


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
    letters = ""
    if model.layer_order:
        letters = repeated(model.layer_order, model.num_layers + num_alone(model))
    layers = {group.name: group.num_layers for group in groups}
    wanted = {name: layers.get(name, 0) for name in COUNTED}
    wanted["chunks"] = 0 if model.chunks is None else model.chunks.num_layers
    found = {name: letters.count(letter) for name, letter in COUNTED.items()}
    if found != wanted or not set(letters) <= KNOWN or not letters:
        raise InputError(
            key=f"model {model.name}: layer_order",
            value=model.layer_order,
            problem=f"must have {' '.join(sorted(KNOWN))} alone, and the layers of the shape",
            remedy=", ".join(f"{count} of {name}" for name, count in wanted.items()),
        )
    return letters


def num_alone(model: "ModelSpec") -> int:
    """Layers that are a feed-forward network alone, if the order of a model has any."""
    is_apart = any(letter in ALONE for letter in model.layer_order or "")
    return (model.num_ffn_layers or 0) if is_apart else 0
