"""Which of a profile's measured alternatives is priced, and what is told instead of measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.errors import InputError

SECTIONS = {
    "paged": "decode_attention",
    "paper": "decode_attention_paper_kernel",
    "contiguous": "contiguous_attention",
}
WAITS = ("by layer", "all in")


def layer_s(by_degree: Mapping[int, float], num_gpus: int) -> float:
    """What tensor parallelism over num_gpus GPUs adds to a layer; an empty table says nothing of any."""
    if num_gpus == 1 or not by_degree:
        return by_degree.get(1, 0.0)
    if num_gpus not in by_degree:
        known = ", ".join(map(str, by_degree))
        raise InputError(f"parallel_layer_s says nothing of {num_gpus} GPUs (it knows {known}); add a price")
    return by_degree[num_gpus]


@dataclass(frozen=True, slots=True)
class Choices:
    """Which of the measured alternatives is priced.

    kernel: "paged" (ours), "paper" (the paper's design) or "contiguous"; spread of context lengths: "ragged" or
    "equal"; swap: "fused" or "per block"; swap_waits: "by layer" (the 2023 system's, see with_swaps) or "all in" (no
    layer runs before everything has come in; what goes out hides behind computing);
    overhead_s: software time of an iteration, None for the profile's (one graph launch, inputs in, tokens out),
    overhead_per_worker_s more for each GPU, whose worker gets its input in turn, overhead_per_request_s more for each
    resident request and overhead_per_token_s for each scheduled token, None for the profile's, where it has them;
    overhead_per_input_s for each resident request
    on each GPU, to whose worker its input is handed; overhead_per_sequence_s for each sequence that takes a step or is
    prefilled, and as much as for sequences_per_fork of them for each fork;
    parallel_layer_s: what a layer takes on so many GPUs beyond its kernels and all-reduces (launches that wait for the
    slowest GPU), by number of GPUs; one GPU needs no entry, and nothing at all is said by an empty table;
    attention_scale: decode attention takes that many times as long;
    repeated_read: what a token of a shared block costs that another sequence reads too, as a share of a first read
    (kernels/results/h200-shared-reads.csv: on average 0.42 with our kernel, 0.28 with the paper's design).
    extra_s: seconds of each thing that a policy counts by name. cuda_graph_sizes: batches are padded to the next of
    them, None for the profile's; none of them for a server that launches eagerly.
    """

    block_size: int = 16
    kernel: str = "paged"
    spread: str = "ragged"
    swap: str = "fused"
    swap_waits: str = "by layer"
    overhead_s: float | None = None
    overhead_per_worker_s: float = 0.0
    overhead_per_request_s: float | None = None
    overhead_per_token_s: float | None = None
    overhead_per_input_s: float = 0.0
    overhead_per_sequence_s: float = 0.0
    sequences_per_fork: float = 0.0
    parallel_layer_s: Mapping[int, float] = field(default_factory=dict)
    attention_scale: float = 1.0
    repeated_read: float = 0.5
    extra_s: Mapping[str, float] = field(default_factory=dict)
    cuda_graph_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.swap_waits not in WAITS:
            raise InputError(f"swap_waits: {self.swap_waits} is not one of {', '.join(WAITS)}")

    @property
    def decode_section(self) -> str:
        """The profile section of the chosen decode kernel."""
        if self.kernel not in SECTIONS:
            raise InputError(f"kernel: {self.kernel} is not one of {', '.join(SECTIONS)}")
        return SECTIONS[self.kernel]
