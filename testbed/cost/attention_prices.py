"""Attention of an iteration, by what the profile has: mixed batches as measured, else prefill and decodes added."""

from collections.abc import Mapping
from typing import Any

from testbed.cost.choices import Choices
from testbed.cost.decode_table import DecodeTable, of_kind
from testbed.cost.mixed_table import MixedTable
from testbed.cost.model import Affine, Work
from testbed.cost.prefill_table import PrefillTable
from testbed.cost.sections import Rows, has, missing, rows, table
from testbed.cost.unequal_lengths import Lengths, UnequalLengths


class Attention:
    """All layers' attention. A section that is not there is named when it is needed."""

    def __init__(self, profile: Mapping[str, Any], choices: Choices, num_layers: int) -> None:
        ours = choices.kernel == "paged"
        self._profile, self._choices, self._layers = profile, choices, num_layers
        self._unequal = UnequalLengths(profile["sections"]["unequal_lengths"]) if self._adds_unequal() else None
        self._decodes = self._decode_table() if has(profile, choices.decode_section) else None
        self._prefill = table(profile, "prefill_attention", lambda points: PrefillTable(points, num_layers))
        self._mixed = self._mixed_table() if ours and has(profile, "mixed_attention") else None

    def __call__(self, work: Work) -> int:
        if work.prefill and self._mixed:
            return self._mixed(work.prefill, _lengths(work), self._saved(work))
        price = self._decode(work) if work.decode_seqs else 0
        return price + self._prefill(work.prefill) if work.prefill else price

    def span(self, work: Work) -> Affine:
        """Decode iterations in a row, the first of which is `work`."""
        if self._decodes is None:
            missing(self._profile, self._choices.decode_section)
        return self._decodes.span(_lengths(work), self._saved(work))

    def _decode(self, work: Work) -> int:
        if self._decodes is None:
            missing(self._profile, self._choices.decode_section)
        return self._decodes(_lengths(work), self._saved(work))

    def _decode_table(self) -> DecodeTable:
        spread = "equal" if self._unequal else self._choices.spread
        points = of_kind(rows(self._profile, self._choices.decode_section), self._choices.block_size, spread)
        return DecodeTable(self._scaled(points), self._layers, self._unequal)

    def _adds_unequal(self) -> bool:
        """Unequal lengths are priced by what they add, where that was measured for the chosen kernel."""
        choices = self._choices
        return choices.kernel == "paged" and choices.spread == "ragged" and has(self._profile, "unequal_lengths")

    def _mixed_table(self) -> MixedTable:
        points = self._scaled(rows(self._profile, "mixed_attention"))
        prompts = self._prefill if isinstance(self._prefill, PrefillTable) else None
        return MixedTable(points, self._layers, self._unequal, prompts)

    def _scaled(self, points: Rows) -> Rows:
        scale = self._choices.attention_scale
        return points if scale == 1 else [(key, round(ps * scale)) for key, ps in points]

    def _saved(self, work: Work) -> int:
        """Tokens whose reading the L2 cache saves, because another sequence of the iteration reads them too."""
        repeated = work.decode_repeated
        return repeated - round(repeated * self._choices.repeated_read) if repeated else 0


def _lengths(work: Work) -> Lengths:
    return Lengths(work.decode_seqs, work.decode_context, work.decode_longest)
