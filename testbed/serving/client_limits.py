"""Limits of what a server takes from its clients."""

from dataclasses import dataclass

from testbed.serving.api_errors import ApiError


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    max_prompts: prompts of one request. max_seqs: sequences of one request (best_of, or the beam's
    width, for each prompt), max_seqs_of_prompt those of one prompt, max_beam_width of one beam: how
    a wider one changes takes seconds to simulate. max_unfinished: prompts that are waiting or
    running. has_priorities: False if nothing reads the priority of a request.
    """

    max_prompts: int = 64
    max_seqs: int = 64
    max_seqs_of_prompt: int = 64
    max_beam_width: int = 16
    max_stop_strings: int = 4
    max_stop_chars: int = 256
    max_unfinished: int = 4096
    has_priorities: bool = True

    def check_sequences(self, num_prompts: int, num_seqs: int) -> None:
        """Refuse a request of too many prompts or sequences."""
        if not 1 <= num_prompts <= self.max_prompts:
            message = f"prompt: has {num_prompts} prompts (send 1 to {self.max_prompts})"
            raise ApiError(400, message, "prompt")
        if num_seqs * num_prompts > self.max_seqs:
            message = (
                f"n: {num_prompts} prompts of {num_seqs} sequences are more than "
                f"{self.max_seqs} sequences (send fewer)"
            )
            raise ApiError(400, message, "n")
        if num_seqs > self.max_seqs_of_prompt:
            message = (
                f"n: {num_seqs} sequences of a prompt are more than this server's "
                f"{self.max_seqs_of_prompt} (send fewer)"
            )
            raise ApiError(400, message, "n")

    def check_beam(self, width: int) -> None:
        """Refuse a beam that is too wide."""
        if width > self.max_beam_width:
            message = f"use_beam_search: {width} is wider than {self.max_beam_width} (send less)"
            raise ApiError(400, message, "use_beam_search")

    def check_stop(self, stop: tuple[str, ...]) -> None:
        """Refuse stop strings that are too many or too long."""
        if len(stop) > self.max_stop_strings:
            message = f"stop: has {len(stop)} strings (send at most {self.max_stop_strings})"
            raise ApiError(400, message, "stop")
        if "" in stop:
            raise ApiError(400, "stop: is empty, which every text has (leave it out)", "stop")
        if any(len(text) > self.max_stop_chars for text in stop):
            message = f"stop: is longer than {self.max_stop_chars} characters (send less)"
            raise ApiError(400, message, "stop")

    def check_priority(self, priority: int) -> None:
        """Refuse a priority that changes nothing."""
        if priority and not self.has_priorities:
            message = (
                f"priority={priority}: this server does not read it (start it with order=priority)"
            )
            raise ApiError(400, message, "priority")

    def check_unfinished(self, num_unfinished: int, num_more: int) -> None:
        """Refuse a request if the queue is full."""
        if num_unfinished + num_more > self.max_unfinished:
            message = f"the queue: has {num_unfinished} requests and is full (try again later)"
            raise ApiError(429, message, code="queue_full")
