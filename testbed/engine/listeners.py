"""Protocols of listeners to requests."""


class Listener:
    """Called when a request has ended, at that time. Each method does nothing unless overridden."""

    def on_finished(self, request_id: int, time_ps: int) -> None:
        """The request has its whole output."""

    def on_rejected(self, request_id: int, reason: str, time_ps: int) -> None:
        """The request could never run; reason: why."""

    def on_cancelled(self, request_id: int, time_ps: int) -> None:
        """The request was cancelled; what it held is free."""


class TokenListener(Listener):
    """Is called at each token too, at the end of its iteration: for it, an engine that takes many
    iterations at once is woken at the end of each.
    """

    def on_tokens(self, request_id: int, count: int, time_ps: int) -> None:
        """Each sequence of the request has `count` output tokens more."""
