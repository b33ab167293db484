"""The pipeline stages of vLLM's server: the layers of each, their weights and their pages."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from testbed.core.layer_order import letters_of
from testbed.core.specs import ModelSpec
from testbed.vllm.option_reader import PARTITION, OptionReader
from testbed.vllm.pages import Pages, columns_of
from testbed.vllm.releases import Release, version_of

STAGES = "--pipeline-parallel-size"
KINDS = {"w": "window", "s": "states", "c": "chunks"}


@dataclass(frozen=True)
class Stage:
    """A pipeline stage. model: the shape with its `layers` alone. num_vocabularies: matrices of
    embedding and output projection. page_share: of the bytes of a page of the whole model. samples:
    it is the last one; receives: it is not the first one.
    """

    model: ModelSpec
    num_vocabularies: int
    layers: range
    page_share: Fraction = Fraction(1)
    samples: bool = True
    receives: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stage's parameters on all its GPUs."""
        counted = 1 if self.model.tied_embedding else 2
        matrix = self.model.vocab_size * self.model.hidden_size * self.model.dtype_bytes
        return self.model.weight_bytes - (counted - self.num_vocabularies) * matrix

    def pages(self, of_model: Pages) -> Pages:
        """The pages of a GPU of this stage."""
        return replace(of_model, page_bytes=int(of_model.page_bytes * self.page_share))


def stages_of(reader: OptionReader, model: ModelSpec, pages: Pages) -> tuple[Stage, ...]:
    """The stages of a server; one without --pipeline-parallel-size. Raises InputError for layers
    that vLLM does not divide so, or whose order is not known.
    """
    count, given = reader.whole(STAGES, 1), reader.environment.get(PARTITION)
    if count == 1 and given is None:
        return (whole(model),)
    if model.experts and model.experts.step > 1:
        problem = "dense layers between those of experts are not divided among stages here"
        raise reader.refusal(STAGES, problem, "give --tensor-parallel-size instead")
    if model.head_bits or model.has_uneven_bits:
        problem = "layers, or an output projection, of other bits are not modelled on their stage"
        raise reader.refusal(STAGES, problem, "give --tensor-parallel-size instead")
    letters = letters_of(model)
    sizes = _sizes(reader, len(letters), count, given)
    ends = [sum(sizes[:number]) for number in range(count + 1)]
    spans = [range(*ends_of_stage) for ends_of_stage in pairwise(ends)]
    return tuple(_stage(reader, model, pages, letters, span) for span in spans)


def whole(model: ModelSpec) -> Stage:
    """The one stage of a server without a pipeline."""
    return Stage(model, _num_vocabularies(model), range(model.num_layers))


def _sizes(reader: OptionReader, num_layers: int, count: int, given: str | None) -> list[int]:
    """The layers of each stage, as vLLM's get_pp_indices has them (distributed/utils.py): those
    that are left over go to the stages before the last one, from behind.
    """
    if given is None:
        sizes = [num_layers // count] * count
        for number in range(2, num_layers % count + 2):
            sizes[-number] += 1
        return sizes
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise reader.refusal(PARTITION, "must be whole numbers with commas between them")
    sizes = [int(part) for part in parts]
    if len(sizes) != count or sum(sizes) != num_layers:
        problem = f"it needs {count} numbers whose sum is {num_layers}"
        raise reader.does_not_start(PARTITION, problem)
    return sizes


def _stage(
    reader: OptionReader,
    model: ModelSpec,
    pages: Pages,
    letters: str,
    span: range,
) -> Stage:
    """The stage of the layers in a span."""
    release = reader.release
    is_first, is_last = span.start == 0, span.stop == len(letters)
    of_stage = _layers_of(reader, model, letters, span)
    return Stage(
        model=of_stage,
        num_vocabularies=_vocabularies_at(model, release, is_first=is_first, is_last=is_last),
        layers=span,
        page_share=_page_share(model, of_stage, pages, letters, span),
        samples=is_last,
        receives=not is_first,
    )


def _layers_of(reader: OptionReader, model: ModelSpec, letters: str, span: range) -> ModelSpec:
    """The shape with the layers of a span alone. Raises InputError for one without attention."""
    part = letters[span.start : span.stop]
    alone = part.count("-") + part.count("e")
    caching = len(part) - alone
    counts = {name: part.count(letter) for letter, name in KINDS.items()}
    if not part:
        raise reader.refusal(STAGES, f"a stage has none of the {len(letters)} layers")
    if caching <= counts["states"] or (model.num_ffn_layers is not None and not alone):
        raise reader.refusal(
            STAGES,
            f"layers {span.start} to {span.stop - 1} are a stage without attention or without "
            "feed-forward networks, which is not modelled",
        )
    layers: dict[str, Any] = {
        name: replace(layer, num_layers=counts[name]) if counts[name] else None
        for name in counts
        if (layer := getattr(model, name)) is not None
    }
    if model.experts is not None:
        num_dense = part.count("-") if "-" in letters else _dense_in(model, span)
        if model.needs_experts and num_dense == len(part):
            raise reader.does_not_start(
                STAGES, f"layers {span.start} to {span.stop - 1} are a stage without experts"
            )
        layers["experts"] = replace(model.experts, num_dense_layers=num_dense)
    return replace(
        model,
        num_layers=caching,
        num_ffn_layers=None if model.num_ffn_layers is None else alone,
        layer_order=None,
        vision_params=None if span.start else model.vision_params,  # images are encoded first
        **layers,
    )


def _dense_in(model: ModelSpec, span: range) -> int:
    """The layers of a span that have no experts, which are the model's first ones."""
    first = model.experts.num_dense_layers if model.experts else 0
    return max(0, min(first, span.stop) - span.start)


def _page_share(
    model: ModelSpec, of_stage: ModelSpec, pages: Pages, letters: str, span: range
) -> Fraction:
    """A page of a stage over one of the whole model: the layers of the column that has most of
    them in the stage. Columns are those of the whole model.
    """
    if not pages.is_grouped:
        return Fraction(of_stage.kv_bytes_per_token, model.kv_bytes_per_token)
    per_column, columns = columns_of(model)
    most = 0
    for letter, num_columns in columns:
        places = [place for place, other in enumerate(letters) if other == letter]
        for column in range(num_columns):
            most = max(most, sum(place in span for place in places[column::num_columns]))
    return Fraction(most, per_column)


def _num_vocabularies(model: ModelSpec) -> int:
    return 1 if model.tied_embedding else 2


def _vocabularies_at(model: ModelSpec, release: Release, *, is_first: bool, is_last: bool) -> int:
    """The matrices of the vocabulary's size that a stage loads."""
    until = model.repeats_vocabulary
    if until is not None and version_of(release.number) <= version_of(until):
        return _num_vocabularies(model)
    embeds = is_first or bool(model.repeats_embedding)
    return int(embeds or is_last) if model.tied_embedding else int(embeds) + int(is_last)


def check_alone(
    reader: OptionReader, *, drafter: float, adapters: float, offloading: object
) -> None:
    """Raise InputError for a part of the server whose division among pipeline stages is not
    modelled: a drafter and adapters that take memory, and a cache below the device.
    """
    parts = {
        "--speculative-config": drafter,
        "--enable-lora": adapters,
        "--kv-transfer-config": offloading,
    }
    option = next((option for option, part in parts.items() if part), None)
    if option is not None and reader.whole(STAGES, 1) > 1:
        raise reader.refusal(
            STAGES,
            f"is not modelled beside {option}",
            f"leave {option} out to see the server without it",
        )
