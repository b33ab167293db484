"""The work of an iteration, also as columns of a table, and the plug-in API for its cost."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from testbed.core.errors import InputError, PlugInError
from testbed.core.request import PS
from testbed.core.slots import DEVICE, Move

if TYPE_CHECKING:
    from testbed.cost.launch_slowness import LaunchSlowness
    from testbed.cost.software import SoftwareTimes


class Moved(NamedTuple):
    """Transfers of one length from one tier to another.

    Attributes:
        source: the tier's name that is read.
        target: the tier's name that is written.
        length: slots of each transfer.
        num_transfers: how many.
        num_runs: runs of adjacent slots in the tier below, if `counted` has found them.
    """

    source: str
    target: str
    length: int
    num_transfers: int
    num_runs: int | None = None

    @property
    def extents(self) -> int:
        """Runs of adjacent slots; the transfers if runs were not counted."""
        return self.num_transfers if self.num_runs is None else self.num_runs


def counted(moves: Iterable[Move]) -> tuple[Moved, ...]:
    """Moves by tiers and length, in order. A copy whose slots below the device follow the last
    copy's begins no run.
    """
    counts: dict[tuple[str, str, int], tuple[int, int]] = {}
    for source, target, copies in moves:
        end = -1
        for src, dst, length in copies:
            start = src if target == DEVICE else dst
            key = source, target, length
            transfers, begun = counts.get(key, (0, 0))
            counts[key] = transfers + 1, begun + (start != end)
            end = start + length
    return tuple([Moved(*key, *count) for key, count in sorted(counts.items())])


class WindowReads(NamedTuple):
    """Reads of the decodes of an iteration in each layer whose window has one size.

    Attributes:
        size: tokens of the window.
        tokens: read in all.
        growing: sequences that are shorter than the window, and read one token more in the next
            iteration.
        steps: iterations in a row for which the same holds, this one included.
    """

    size: int
    tokens: int
    growing: int
    steps: int


class Work(NamedTuple):
    """The work of one iteration, in counts; never in block ids. Decodes and prompts run together.

    Attributes:
        decode_seqs: sequences that write one token each.
        decode_context: tokens that these read in all, the new ones included, in each layer of full
            attention.
        decode_max_context: tokens that the longest of them reads.
        decode_repeated: reads of a token that another decode of this iteration reads in the same
            slots: a token that n decodes share counts n - 1 times. Sequences that share it without
            decoding do not count: a prompt in prefill, a sequence that only keeps its slots, the
            pin of a registered prefix.
        prefill: (new tokens, tokens already stored) of every sequence in prefill.
        num_requests: requests that are running: the software time of each counts too.
        copies: (length in slots, how many) on the device.
        moves: transfers between tiers.
        extra: whatever else a policy counts, as (name, how many).
        forks: sequences made from others since the iteration before.
        windows: what decodes read in layers with a window, shared or not, for each size that the
            cost model names in `windows`.
        draft_tokens: computed by decodes besides their one token each, by speculative decoding;
            contexts include them.
    """

    decode_seqs: int = 0
    decode_context: int = 0
    decode_max_context: int = 0
    decode_repeated: int = 0
    prefill: tuple[tuple[int, int], ...] = ()
    num_requests: int = 0
    copies: tuple[tuple[int, int], ...] = ()
    moves: tuple[Moved, ...] = ()
    extra: tuple[tuple[str, int], ...] = ()
    forks: int = 0
    windows: tuple[WindowReads, ...] = ()
    draft_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that pass through the linear layers."""
        decodes = self.decode_seqs + self.draft_tokens
        return decodes + sum([new for new, _ in self.prefill]) if self.prefill else decodes

    @property
    def num_outputs(self) -> int:
        """Tokens for which the model computes what comes next."""
        return self.decode_seqs + self.draft_tokens + len(self.prefill)

    def later(self, steps: int) -> "Work":
        """These decodes `steps` iterations later.

        Args:
            steps: iterations from this one on.
        """
        windows = [
            reads._replace(tokens=reads.tokens + steps * reads.growing, steps=reads.steps - steps)
            for reads in self.windows
        ]
        return self._replace(
            decode_context=self.decode_context + steps * self.decode_seqs,
            decode_max_context=self.decode_max_context + steps,
            windows=tuple(windows),
        )


NO_SOFTWARE = ""
UNBOUNDED = 1 << 80  # more steps, and more picoseconds, than any run has
PREFIX = "work_"
WORK_COLUMNS = tuple(PREFIX + name for name in Work._fields)
LISTS = ("prefill", "copies", "moves", "extra", "windows")


def work_cells(work: Work) -> list[Any]:
    """The cells of WORK_COLUMNS: numbers, and lists as JSON."""
    return [
        json.dumps(value, separators=(",", ":")) if name in LISTS else value
        for name, value in zip(Work._fields, work, strict=True)
    ]


class Affine(NamedTuple):
    """Durations of decode iterations in a row: first_ps, first_ps + growth_ps, first_ps + 2
    growth_ps, ...

    Attributes:
        first_ps: picoseconds of the first.
        growth_ps: picoseconds that each takes more than the one before.
        steps: for how many iterations this holds.
    """

    first_ps: int
    growth_ps: int
    steps: int

    def total_ps(self, steps: int) -> int:
        """Duration of the first `steps` iterations together.

        Args:
            steps: how many.
        """
        return steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)

    def steps_to_reach(self, elapsed_ps: int) -> int:
        """The fewest iterations, at least one, after which elapsed_ps have passed; growth_ps <= 2
        first_ps.

        Args:
            elapsed_ps: picoseconds.
        """
        first, growth, _ = self
        if not growth:
            return max(-(-elapsed_ps // first), 1)
        elapsed, slope = max(elapsed_ps, 1), 2 * first - growth
        # total_ps(k) = elapsed is a quadratic in k, whose root is rounded down
        steps = (isqrt(slope * slope + 8 * growth * elapsed) - slope) // (2 * growth)
        return steps + (steps * first + growth * (steps * (steps - 1) // 2) < elapsed)


class Launch(NamedTuple):
    """The time that the host takes to launch an iteration, from when it begins with it.

    Attributes:
        first_ps: picoseconds until the GPU has the first of it.
        whole_ps: picoseconds until the GPU has the whole.
        unseen_ps: so much later, if none with prompts before had as many tokens.
    """

    first_ps: int
    whole_ps: int
    unseen_ps: int = 0


def are_durations(durations: Any) -> bool:
    """True if a plug-in's answer is an Affine of plain whole numbers, and every iteration takes
    some time.
    """
    if type(durations) is not Affine:
        return False
    first_ps, growth_ps, steps = durations
    return (
        (type(first_ps) is type(growth_ps) is type(steps) is int)
        and first_ps > 0
        and growth_ps >= 0
        and steps > 0
    )


def wrong_durations(cost: "CostModel", durations: Any) -> PlugInError:
    """The error of an answer that `are_durations` refuses: time is whole picoseconds, and every
    iteration takes some.
    """
    name = type(cost).__name__
    kind: Any = Affine  # as above
    if type(durations) is not kind:
        return PlugInError(f"{name} answered {durations!r}; decode() gives an Affine")
    first_ps, growth_ps, steps = durations
    return PlugInError(
        f"{name} says that an iteration takes {first_ps!r} ps, each later one {growth_ps!r} more, "
        f"for {steps!r} iterations; costs are whole numbers above 0"
    )


def extra_ps(extra: tuple[tuple[str, int], ...], costs_s: Mapping[str, float]) -> int:
    """Picoseconds of the events that a policy counts by name, at costs_s[name] seconds each.

    Raises InputError for a name without a cost.
    """
    try:
        return sum([count * round(costs_s[name] * PS) for name, count in extra])
    except KeyError as name:
        names = ", ".join(costs_s) or "none"
        raise InputError(
            key=f"the policy's count {name}",
            problem="has no cost in the cost model",
            remedy=f"it knows {names}",
        ) from None


class CostModel(ABC):
    """Computes the time of iterations. Only `iteration` is needed; `decode` makes it fast,
    `transfer` is for tiers.

    All attributes but the first two only describe the times, in summaries and messages.

    Attributes:
        windows: the sizes of sliding windows, in tokens, for which `Work.windows` counts what
            decodes read.
        verifies_as_prompts: whether sequences with draft tokens are launched as prompts are.
        fingerprint: the source, date and device of the measurement; None if they were not
            measured.
        fit: the errors of a measured profile.
        provenance: what times without a fingerprint are; empty: unknown.
        software: the system whose software times are charged, None for configured ones; NO_SOFTWARE
            if there are none.
        times: its software times as they are configured; None: it has none.
        has_data_sheet: whether the times name the data sheet of the GPU on which they were
            measured, if they were.
        drafter: the cost of the passes of a drafter; None: drafts take no time of the GPU.
        launches: whether it has the host's time of launches, which `launch` says.
        slowness: of the host from moment to moment while it launches prompts; None: always alike.
        spans: whether `decode` says more than one step.
    """

    windows: tuple[int, ...] = ()
    verifies_as_prompts: bool = False
    fingerprint: Mapping[str, Any] | None = None
    fit: Mapping[str, Any] | None = None
    provenance: str = ""
    software: str | None = NO_SOFTWARE
    times: "SoftwareTimes | None" = None
    has_data_sheet: bool = True
    drafter: "CostModel | None" = None
    launches: bool = False
    slowness: "LaunchSlowness | None" = None
    spans: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that defines `launch` or `decode` need not say that it does."""
        super().__init_subclass__(**options)
        cls.launches = cls.launch is not CostModel.launch
        cls.spans = cls.decode is not CostModel.decode

    @abstractmethod
    def iteration(self, work: Work) -> int:
        """Picoseconds of one iteration, a whole number above 0.

        Args:
            work: what the iteration does.
        """

    def decode(self, work: Work) -> Affine:
        """Times of the next decode iterations; in each later one every sequence reads one token
        more, and all other counts stay.

        Must equal `iteration` step by step, as far as it says. By default it says one step only.

        Args:
            work: the first of them (no prompts, copies, moves, extra, forks).
        """
        return Affine(self.iteration(work), growth_ps=0, steps=1)

    def least(self, num_tokens: int) -> int:
        """A lower bound, in picoseconds, of any iteration over num_tokens tokens; 0 if nothing is
        known. `testbed plan` excludes deployments by it.

        Args:
            num_tokens: tokens of an iteration, at least one.
        """
        return 0

    def launch(self, decode_seqs: int, num_prompts: int, prompt_tokens: int) -> Launch | None:
        """The times of launching an iteration; None if `iteration` and `decode` have its time.

        An iteration that is planned while another one computes is launched meanwhile, so that only
        the rest is waited for. Decodes are launched no longer than they compute.

        Args:
            decode_seqs: sequences that decode.
            num_prompts: prompts, or chunks of them.
            prompt_tokens: their tokens together.
        """
        return None

    def launched(self, work: Work) -> Work:
        """The work as the host launches it.

        Args:
            work: of an iteration.
        """
        return work

    def transfer(self, moves: tuple[Moved, ...]) -> int:
        """Picoseconds of one transfer in the background that has its link to itself.

        Args:
            moves: what it moves.
        """
        raise InputError(
            key=type(self).__name__,
            problem="has no time for transfers between tiers",
            remedy="define transfer()",
        )
