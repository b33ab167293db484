"""Prices from a measured profile: by counts only, piecewise affine in whole picoseconds.

`python -m kernels.measure.calibrate` writes a profile on a GPU; this module only reads JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.request import PS
from testbed.core.specs import ModelSpec, ServerSpec
from testbed.cost.model import UNBOUNDED, Affine, CostModel, Work, extra_ps, transfers, with_swaps
from testbed.cost.tables import AllReduce, DecodeTable, Knots, PrefillTable, SizedTable, rows

PROFILES = Path(__file__).parent / "profiles"
FORMAT = 1


def read_profile(path: str | Path) -> dict[str, Any]:
    """A profile by path, or one that ships with the package by name such as `h200-opt-13b-tp1`."""
    file = Path(path)
    if not file.is_file():
        file = PROFILES / f"{path}.json"
    if not file.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.json")))
        raise InputError(f"no profile {path}: neither a file nor one of {known}")
    profile: dict[str, Any] = json.loads(file.read_text())
    if profile.get("format") != FORMAT:
        raise InputError(f"{file.name}: profile format {profile.get('format')}, this version reads {FORMAT}")
    return profile


@dataclass(frozen=True, slots=True)
class Choices:
    """Which of the measured alternatives is priced.

    kernel: "paged" (ours), "paper" (the paper's design) or "contiguous"; spread of context lengths: "ragged" or
    "equal"; swap: "fused" or "per block"; overhead_s: software time of an iteration, None for the measured minimum
    (one graph launch, inputs in, tokens out), overhead_per_worker_s more for each GPU, whose worker gets its input in
    turn, and overhead_per_request_s more for each resident request;
    attention_scale: decode attention takes that many times as long;
    repeated_read: what a token of a shared block costs that another sequence reads too, as a share of a first read
    (kernels/results/h200-shared-reads.csv: on average 0.42 with our kernel, 0.28 with the paper's design).
    extra_s: seconds of each thing that a policy counts by name.
    """

    block_size: int = 16
    kernel: str = "paged"
    spread: str = "ragged"
    swap: str = "fused"
    overhead_s: float | None = None
    overhead_per_worker_s: float = 0.0
    overhead_per_request_s: float = 0.0
    attention_scale: float = 1.0
    repeated_read: float = 0.5
    extra_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def decode_section(self) -> str:
        """The profile section of the chosen decode kernel."""
        sections = {
            "paged": "decode_attention",
            "paper": "decode_attention_paper_kernel",
            "contiguous": "contiguous_attention",
        }
        if self.kernel not in sections:
            raise InputError(f"kernel: {self.kernel} is not one of {', '.join(sections)}")
        return sections[self.kernel]


class ProfileCost(CostModel):
    """Measured prices of one model's shard on one GPU; tensor-parallel GPUs work in step.

    A decode iteration of n sequences is affine in their total context between knots, so spans are cut at knots and
    fast-forwarding equals stepping bit for bit. All-reduces are measured ones if the profile has them, else a ring
    over the server's links; with server None the shard is priced by itself, without all-reduces.
    """

    def __init__(
        self,
        model: ModelSpec,
        server: ServerSpec | None,
        path: str | Path | Mapping[str, Any],
        choices: Choices | None = None,
    ) -> None:
        profile = path if isinstance(path, Mapping) else read_profile(path)
        num_gpus = server.num_gpus if server else profile["num_gpus"]
        same_shape = {**profile["model"], "max_len": model.max_len} == asdict(model)
        if not same_shape or profile["num_gpus"] != num_gpus:
            name, degree = profile["model"]["name"], profile["num_gpus"]
            raise InputError(f"the profile is of {name} on {degree} GPU(s), asked for {model.name} on {num_gpus}")
        self.fingerprint: Mapping[str, Any] = profile["fingerprint"]
        self.choices = choices = choices or Choices()
        self._model, layers = model, model.num_layers
        self._linear = Knots((key[0], ps * layers) for key, ps in rows(profile, "linear"))
        self._head = Knots((key[0], ps) for key, ps in rows(profile, "output_head"))
        self._write = Knots((key[0], ps * layers) for key, ps in rows(profile, "cache_write"))
        self._reduce = AllReduce(profile, server)
        measured_rows = rows(profile, choices.decode_section)
        decode_rows = [(key, round(ps * choices.attention_scale)) for key, ps in measured_rows]
        self._curve = DecodeTable(decode_rows, choices.block_size, choices.spread, layers).curve
        self._prefill = PrefillTable(rows(profile, "prefill_attention"), layers)
        self._copy = SizedTable(rows(profile, "block_copy"))
        moves = [(key, ps) for key, ps in rows(profile, "swap") if key[0] == choices.swap]
        self._out = SizedTable((key[2:], ps) for key, ps in moves if key[1] == "out")
        self._in = SizedTable((key[2:], ps) for key, ps in moves if key[1] == "in")
        measured = dict(rows(profile, "overhead"))[("iteration",)]
        iteration_ps = measured if choices.overhead_s is None else round(choices.overhead_s * PS)
        self._overhead_ps = iteration_ps + num_gpus * round(choices.overhead_per_worker_s * PS)
        self._per_request_ps = round(choices.overhead_per_request_s * PS)
        self._forward = cache(self._forward_ps)

    def iteration(self, work: Work) -> int:
        price = self._forward(work.num_tokens, work.decode_seqs + len(work.prefill)) if work.num_tokens else 0
        read = self._effective(work.decode_context, work.decode_repeated)
        price += self._curve(work.decode_seqs)(read) if work.decode_seqs else 0
        price += self._prefill(work.prefill) + sum(self._copy(length, count) for length, count in work.copies)
        if work.moves:
            price = self._with_swaps(price, work)
        price += extra_ps(work.extra, self.choices.extra_s) if work.extra else 0
        return price + work.num_requests * self._per_request_ps

    def decode(self, work: Work) -> Affine:
        num_seqs = work.decode_seqs
        curve, context = self._curve(num_seqs), self._effective(work.decode_context, work.decode_repeated)
        end = curve.end(context)
        steps = UNBOUNDED if end == UNBOUNDED else -(-(end - context) // num_seqs)
        first = self._forward(num_seqs, num_seqs) + work.num_requests * self._per_request_ps + curve(context)
        return Affine(first, num_seqs * curve.slopes[curve.segment(context)], steps)

    def _effective(self, context: int, repeated: int) -> int:
        """The context that would take as long if nothing were shared."""
        return context - repeated + round(repeated * self.choices.repeated_read)

    def _forward_ps(self, num_tokens: int, num_rows: int) -> int:
        """Everything of an iteration that depends on token counts only."""
        reduced = 2 * self._model.num_layers * self._reduce(num_tokens * self._model.hidden_size * 2)
        return self._linear(num_tokens) + self._head(num_rows) + self._write(num_tokens) + reduced + self._overhead_ps

    def _with_swaps(self, computing_ps: int, work: Work) -> int:
        """Swaps both ways share a stream; fused, a run of adjacent blocks is one copy, and few are ever pending."""
        layers, tables = self._model.num_layers, {"out": self._out, "in": self._in}
        counts = transfers(work.moves)
        moving_ps = sum(tables[way](length, count) for (way, length), count in counts.items())
        per_block = 2 * layers if self.choices.swap == "per block" else 1
        return with_swaps(computing_ps, moving_ps, per_block * sum(counts.values()), layers)
