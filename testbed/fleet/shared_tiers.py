"""Tiers that all engines of a fleet use: one memory and one link for each."""

from collections import Counter
from collections.abc import Iterable, Mapping

from testbed.core.errors import InputError, PlugInError
from testbed.engine.clock import Clock
from testbed.engine.engine import Engine
from testbed.engine.links import SharedLink
from testbed.memory.capabilities import Capabilities
from testbed.memory.protocols import SharesTiers
from testbed.memory.tiers.lower_tier import LowerTier


class SharedTiers:
    """The tiers of these names, which every engine that joins uses in place of its own.

    The transfers of all engines share a tier's link, as those of one engine would. An engine that
    fails leaves in a tier what has landed there. When the content of a tier changes, every engine
    with requests, or with blocks to store, makes a new plan at its next iteration boundary.
    """

    def __init__(self, clock: Clock, names: Iterable[str]) -> None:
        self.links = {name: SharedLink(clock) for name in names}
        self.memories: dict[str, LowerTier] = {}
        self._engines: dict[Engine, SharesTiers] = {}

    def lend(self, memory: Capabilities) -> None:
        """Give the tiers to a policy that stores nothing yet; the first policy makes them.

        Raises:
            InputError: the policy cannot share tiers, or not with the other policies.
        """
        if not self.links:
            return
        sharer = sharer_of(memory)
        if not self.memories:
            self.memories = named(sharer.lower_tiers(), self.links)
            for tier in self.memories.values():
                tier.on_change = self._replan
        sharer.share_tiers(self.memories)

    def join(self, engine: Engine) -> None:
        """An engine whose policy has the tiers serves from now on."""
        if self.links:
            self._engines[engine] = sharer_of(engine.scheduler.memory)

    def leave(self, engine: Engine) -> None:
        """The engine has failed: nothing of it is on the way to or from the tiers any more."""
        sharer = self._engines.pop(engine, None)
        if sharer is not None:
            sharer.leave_tiers()

    def check(self) -> None:
        """Raise PlugInError if a block of a tier is lost, or is read or written by a transfer
        that no engine has.
        """
        for name, tier in self.memories.items():
            reads, writes = Counter[int](), Counter[int]()
            for sharer in self._engines.values():
                read, written = sharer.transfers_of(name)
                reads.update(read)
                writes.update(written)
            try:
                tier.check()
            except AssertionError as error:
                raise PlugInError(f"tier {name}, which several engines share: {error}") from error
            if reads != tier.pins or writes != Counter(tier.arriving.values()):
                raise PlugInError(
                    f"tier {name}, which several engines share: transfers read the blocks "
                    f"{sorted(reads)} and write {sorted(writes)}; it has {sorted(tier.pins)} "
                    f"pinned and {sorted(tier.arriving.values())} arriving"
                )

    def _replan(self) -> None:
        for engine, sharer in self._engines.items():
            if engine.outputs.requests or sharer.has_stores():
                engine.replan()


def named(tiers: Mapping[str, LowerTier], names: Iterable[str]) -> dict[str, LowerTier]:
    """The tiers of these names; InputError if one is missing."""
    missing = [name for name in names if name not in tiers]
    if missing:
        raise InputError(
            key=f"server.tiers.{missing[0]}",
            problem=(
                "is to be shared, and the engine has no tier of that name (it has "
                f"{', '.join(tiers) or 'none'})"
            ),
        )
    return {name: tiers[name] for name in names}


def sharer_of(memory: Capabilities) -> SharesTiers:
    """The policy as one that shares tiers; InputError if it shares none."""
    if memory.shares_tiers is None:
        raise InputError(
            key="policy",
            value=memory.name,
            problem="shares no tier with other engines",
            remedy="choose policy=tiered, or server.tiers.NAME.shared=false",
        )
    return memory.shares_tiers
