"""A router outside the package: the engine where a prompt's prefix is, unless it is busy."""

from collections.abc import Sequence

from testbed.core.request import Incoming
from testbed.core.units import Count, Seconds, Share
from testbed.fleet.routers.router import Router
from testbed.fleet.views import EngineView


class PrefixUnlessBusy(Router):
    """The engine with the longest cached prefix of those that have at most `most_ahead` requests
    more than the least busy one; the least busy one if no prefix reaches `least_share` of a prompt.

    `cache_age_s` asks for knowledge of the caches, and says how old it is. A router may remember
    what it has answered, but not the views: an engine that comes back after a failure has a new
    one, and `engines` lists only those that are up.
    """

    def __init__(
        self, most_ahead: Count = 4, least_share: Share = 0.25, cache_age_s: Seconds = 0.5
    ) -> None:
        self.most_ahead = most_ahead
        self.least_share = least_share
        self.cache_age_s = cache_age_s

    def route(self, request: Incoming, engines: Sequence[EngineView]) -> EngineView:
        """One of `engines`; requests have no output length in them."""
        idlest = min(engines, key=lambda view: view.num_requests)
        most = idlest.num_requests + self.most_ahead
        near = [view for view in engines if view.num_requests <= most]
        best = max(near, key=lambda view: view.num_cached(request))
        found = best.num_cached(request)
        return best if found >= self.least_share * request.prompt_len else idlest
