"""Drafts by a smaller model beside the one that serves."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.model_files import LIKE, model_names
from testbed.core.shapes import read_model
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.core.units import PositiveCount
from testbed.cost.analytic import AnalyticCost, Efficiencies
from testbed.cost.model import CostModel
from testbed.speculation.speculation import Speculation


class DraftModel(Speculation):
    """The model `drafter`, a shape, a name (testbed list model) or the folder of a config.json,
    drafts token by token.

    Its weights reduce the pool, and a block has its K and V beside those of the model, in the types
    that the model has. A pass costs the roofline of its shape, with these efficiencies; the model's
    own costs charge software times, once an iteration. Its batch has one token more for each
    sequence, the newest (num_inserted; vLLM's max_num_new_slots_for_drafting).
    """

    num_inserted = 1

    def __init__(
        self,
        num_drafts: PositiveCount = 3,
        drafter: str | ModelSpec = "llama-3.2-1b",
        efficiencies: Efficiencies | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_drafts, **options)
        self._drafter = _shape(drafter)
        self._efficiencies = efficiencies or Efficiencies()

    def drafter(self, model: ModelSpec) -> ModelSpec:
        kv_bytes, num_bytes = model.kv_dtype_bytes, model.dtype_bytes
        return replace(self._drafter, kv_dtype_bytes=kv_bytes, dtype_bytes=num_bytes)

    def draft_cost(self, model: ModelSpec, server: ServerSpec) -> CostModel:
        return AnalyticCost(self.drafter(model), server, self._efficiencies)


def _shape(drafter: object) -> ModelSpec:
    """The shape of a model; raises InputError for what is no shape, name or folder."""
    if isinstance(drafter, ModelSpec):
        return drafter
    if not isinstance(drafter, str):
        raise InputError(
            key="drafter",
            value=repr(drafter),
            problem="is no model",
            remedy="give a name of `testbed list model`",
        )
    config = Path(drafter) / "config.json"
    if drafter not in model_names() and config.is_file():
        from testbed.core.hf_config import model_of  # drafters that ship need no config.json

        return model_of(config)
    return read_model(drafter)


def vocabulary_problem(drafter: ModelSpec, model: ModelSpec) -> str:
    """The problem of a drafter with another vocabulary than the model's; empty if it is the same,
    as whole models that draft have it.
    """
    own, others = drafter.vocab_size, model.vocab_size
    if own == others:
        return ""
    return f"has {own:,} tokens in its vocabulary, and {model.name} {others:,}"


def drafters_of_vocabulary(model: ModelSpec) -> str:
    """The remedy for such a drafter: the smallest models that ship, can draft and have as many
    tokens, of the model's family if any are. Equal sizes may be of other tokens.
    """
    fit = [shape for shape in map(read_model, model_names()) if _drafts_for(shape, model)]
    alike = [shape for shape in fit if _family(shape) == _family(model)]
    smallest = sorted(alike or fit, key=lambda shape: shape.num_params)[:LIKE]
    if not smallest:
        return "no smaller model here that drafts has a vocabulary of this size"
    related = "of its family and" if alike else "of"
    return f"{related} equal size of vocabulary: {', '.join(shape.name for shape in smallest)}"


def _drafts_for(drafter: ModelSpec, model: ModelSpec) -> bool:
    """True if a smaller model has as many tokens, and both are modelled with drafts."""
    has_other_cache = any(
        shape.window is not None or shape.states is not None for shape in (drafter, model)
    )
    return (
        not has_other_cache
        and not drafter.drafts_itself
        and drafter.vocab_size == model.vocab_size
        and drafter.num_params < model.num_params
    )


def _family(model: ModelSpec) -> str:
    """The letters that a model's name begins with; Mixtral's tokens are Mistral's."""
    letters = re.match("[a-z]*", model.name.lower())
    return "" if letters is None else letters[0].replace("mixtral", "mistral")


def check_vocabulary(drafter: ModelSpec, model: ModelSpec) -> None:
    """Raise InputError for a drafter of another vocabulary than the model's."""
    if problem := vocabulary_problem(drafter, model):
        raise InputError(
            key="speculation.drafter",
            value=drafter.name,
            problem=problem,
            remedy=drafters_of_vocabulary(model),
        )
