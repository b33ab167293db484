"""Memory saved by sharing blocks (Figure 15 and section 6.3)."""

from collections.abc import Collection

import pandas as pd

from experiments.paper.studies.averages import Averages
from experiments.paper.studies.study import Finding, RowKey

WIDTHS = (2, 4, 6)


class Savings(Averages):
    """Averages, and what section 6.3 says of several of them together."""

    def only(self, rows: Collection[RowKey]) -> "Savings":
        """One run serves several rows."""
        return self

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        savings = table.groupby("setting")["simulated"].mean()
        parallel, sharegpt, beams = (
            tuple(float(savings[f"opt-13b {kind} {width}"]) for width in WIDTHS)
            for kind in ("alpaca parallel", "sharegpt parallel", "sharegpt beam")
        )
        # All but one of n sequences do without a copy of the prompt: they save (n - 1) / n of the prompts' share.
        share = sum(value * n / (n - 1) for value, n in zip(parallel, WIDTHS, strict=True)) / len(WIDTHS)
        place = "sec6.3", "opt-13b alpaca parallel sampling", "vllm", "prompt_share_of_kv"
        return [
            *(finding for finding in super().findings(table) if finding.figure != "sec6.3"),
            Finding(*place, share, note="from the savings of Figure 15a"),
            Finding("sec6.3", "opt-13b sharegpt parallel 2..6", "vllm", "memory_saving", sharegpt),
            Finding("sec6.3", "opt-13b sharegpt beam 2..6", "vllm", "memory_saving", beams),
        ]
