"""The draft tokens of a scheduler's decodes: how many a step has, what slots it needs for them, and
what became of them.
"""

from collections.abc import Iterable, Mapping

from testbed.core.errors import InputError
from testbed.core.sequence import RUNNING, SequenceGroup
from testbed.memory.capabilities import Capabilities
from testbed.sched.limits import Limits
from testbed.sched.plan import Draft
from testbed.speculation.counts import DraftCounts
from testbed.speculation.speculation import Speculation
from testbed.vllm.releases import Release

NONE_FOUND: Mapping[int, int] = {}


class NoDrafts:
    """A decode computes its newest token alone.

    Attributes:
        num_lookahead: slots of a step behind the tokens that it computes.
        num_charged: tokens of the budget that each sequence of an iteration takes on top.
    """

    num_lookahead = 0
    num_charged = 0

    def take(self, group: SequenceGroup) -> int:
        """The number of drafts that were proposed for the group's next step, which is planned."""
        return 0

    def propose(
        self,
        groups: Iterable[SequenceGroup],
        batch_size: int,
        found: Mapping[int, int] = NONE_FOUND,
    ) -> None:
        """An iteration of batch_size requests is over: propose the drafts that the next step of
        these groups, which have a new token, may verify. found: see Results.
        """

    def forget(self, group: SequenceGroup) -> None:
        """The group leaves, or loses its slots: nothing is proposed for it any more."""

    def accept(self, draft: Draft, num_accepted: int) -> bool:
        """A step has verified its drafts, of which num_accepted became output tokens; whether the
        slots of the rejected ones come back.
        """
        return False


class Drafting(NoDrafts):
    """The drafts of a speculation, proposed when an iteration is over.

    Attributes:
        speculation: what drafts.
        counts: what became of the drafts.
    """

    def __init__(self, speculation: Speculation, release: Release) -> None:
        self.speculation = speculation
        self.num_lookahead = speculation.num_lookahead
        self.num_charged = speculation.num_inserted if release.admits_with_drafts else 0
        self.counts = DraftCounts()
        self._proposed: dict[int, int] = {}

    def take(self, group: SequenceGroup) -> int:
        return self._proposed.pop(group.request_id, 0)

    def propose(
        self,
        groups: Iterable[SequenceGroup],
        batch_size: int,
        found: Mapping[int, int] = NONE_FOUND,
    ) -> None:
        for group in groups:
            if group.status is RUNNING:
                request_id = group.request_id
                asked = self.speculation.num_drafts(request_id, group.generated_offset, batch_size)
                self._proposed[request_id] = min(asked, found.get(request_id, asked))

    def forget(self, group: SequenceGroup) -> None:
        self._proposed.pop(group.request_id, None)

    def accept(self, draft: Draft, num_accepted: int) -> bool:
        self.counts.add(draft.num_drafts, num_accepted)
        return not self.speculation.keeps_slots


def without_drafters_tokens(limits: Limits, speculation: Speculation, release: Release) -> Limits:
    """The limits of the model's own batch, in a release that takes the tokens which a drafter's
    batch has on top off the budget of all sequences.
    """
    num_tokens = speculation.num_inserted * limits.max_num_seqs
    if release.admits_with_drafts or not num_tokens:
        return limits
    budget = limits.max_num_batched_tokens - num_tokens
    if budget < 1:
        raise InputError(
            key="scheduler.max_num_batched_tokens",
            value=limits.max_num_batched_tokens,
            problem=f"the drafter's batch takes {num_tokens} of these, which leaves nothing",
            remedy="give more, or a smaller max_num_seqs",
        )
    return Limits(budget, limits.max_num_seqs, min(limits.max_chunk_tokens, budget))


def check_chunk(limits: Limits, speculation: Speculation, release: Release) -> None:
    """Raise InputError for chunks that cut a prompt's last token from its rows for drafts: a
    server of a release that admits with drafts ends at the first prompt with one token left.
    """
    rows = 1 + speculation.max_drafts
    is_cut = limits.max_chunk_tokens < rows <= limits.max_num_batched_tokens
    if not (is_cut and release.admits_with_drafts):
        return
    raise InputError(
        key="scheduler.long_prefill_token_threshold",
        value=limits.max_chunk_tokens,
        problem=(
            f"this run may have a prompt with one token left to compute (of one token, or with the "
            f"others cached), which needs {rows} rows for drafts: vLLM {release.number} ends with "
            "an AssertionError there"
        ),
        remedy=f"at least {rows}, or 0",
    )


def check_memory(memory: Capabilities, speculation: Speculation) -> None:
    """Raise InputError for a memory policy that has no model of drafts."""
    if memory.layered is not None:
        raise InputError(
            key="speculation",
            problem=(
                f"{memory.name} gives back what a window has left behind, which rejected drafts "
                "would need again: not modelled"
            ),
            remedy="policy=paged or policy=prefix_caching_v1",
        )
    if memory.stores_below is not None:
        raise InputError(
            key="speculation",
            problem=(
                f"{memory.name} stores prefixes below the GPUs, without tokens for drafters: not "
                "modelled"
            ),
            remedy="policy=prefix_caching_v1",
        )
    if not speculation.keeps_slots and memory.truncates is None:
        raise InputError(
            key="speculation.keeps_slots",
            value="false",
            problem=f"{memory.name} takes no slots back from a sequence",
            remedy="policy=paged does; or leave keeps_slots out",
        )


def check_ahead(speculation: Speculation) -> None:
    """Raise InputError for speculation whose next plan needs the results of the last one."""
    name = type(speculation).__name__
    if not speculation.drafts_on_gpu:
        raise InputError(
            key="speculation",
            problem=(
                f"drafts of {name} are made on the CPU from the results of an iteration, so that "
                "the next one cannot be planned ahead"
            ),
            remedy="scheduler=vllm_v1",
        )
    if speculation.off_above is not None:
        raise InputError(
            key="speculation.off_above",
            problem="asynchronous scheduling always plans all drafts",
            remedy="scheduler=vllm_v1, or leave off_above out",
        )
    if not speculation.keeps_slots:
        raise InputError(
            key="speculation.keeps_slots",
            value="false",
            problem=(
                "the plan ahead has taken the slots of rejected drafts again before they are "
                "rejected"
            ),
            remedy="scheduler=vllm_v1, or leave keeps_slots out",
        )
