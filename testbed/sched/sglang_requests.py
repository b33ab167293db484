"""Facts of requests that SGLang's scheduler keeps."""

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import ceil_div

MOST_RESERVED = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION


class DeclaredOutputs:
    """The declared outputs of requests, as SGLang cuts them on arrival (init_req_max_new_tokens),
    and what of them is known to be generated.

    in_flight: groups whose next token is computed in an iteration whose results are not known yet.
    """

    def __init__(self, total: int, page_size: int, context_length: int | None) -> None:
        self._total = total
        self._page_size = page_size
        self._max_len = min(context_length or total, total) - 1
        self.in_flight: set[SequenceGroup] = set()

    def most(self, prompt_len: int) -> int:
        """Output tokens at which SGLang ends a request of such a prompt, whatever it declares."""
        paged = ceil_div(prompt_len, self._page_size) * self._page_size
        fitting = min(self._max_len - prompt_len, self._total - paged - self._page_size)
        return max(fitting - 1, 0)

    def declared(self, group: SequenceGroup) -> int:
        """Output tokens at most; without a declared number as many as fit."""
        most, declared = self.most(group.request.prompt_len), group.request.max_new_tokens
        return most if declared is None else max(min(most, declared), 0)

    def generated(self, group: SequenceGroup) -> int:
        """Output tokens whose results are known."""
        return group.num_generated - (group in self.in_flight)

    def left(self, group: SequenceGroup) -> int:
        """Tokens that a running group may still generate, as far as memory is reserved for them."""
        return min(max(self.declared(group) - self.generated(group), 0), MOST_RESERVED)

    def ends_in_flight(self, group: SequenceGroup) -> bool:
        """True if the token in flight is the last one that the request may have."""
        return group in self.in_flight and self.generated(group) + 1 >= self.declared(group)


class RetractionOrder:
    """The order in which requests lose their slots: the one that has generated fewest tokens, of
    these that of the longest prompt (_get_decode_retraction_order). priority_sign: before that the
    least urgent, by a sign of the requests' numbers; 0: whatever they are.
    """

    def __init__(self, outputs: DeclaredOutputs, priority_sign: int) -> None:
        self._outputs = outputs
        self._sign = priority_sign

    def sort(self, running: list[SequenceGroup]) -> None:
        """Put the first victim last."""
        running.sort(key=self._worth, reverse=True)

    def _worth(self, group: SequenceGroup) -> tuple[int, int, int]:
        priority = self._sign * group.request.priority
        return priority, self._outputs.generated(group), -group.request.prompt_len
