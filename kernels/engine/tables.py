"""The tables of sequences as the engine last read them; a policy is asked again only where they can have changed."""

from kernels.engine.layout import Layout, Place
from testbed.core.errors import PlugInError
from testbed.core.sequence import Sequence
from testbed.memory.policy import MemoryPolicy


class Tables:
    """Tables only grow between copies, moves and forks: after these, and past its end, a table is read anew."""

    def __init__(self, policy: MemoryPolicy, layout: Layout) -> None:
        self.policy = policy
        self.layout = layout
        self._places: dict[int, Place] = {}

    def place(self, seq: Sequence, num_tokens: int) -> Place:
        """Where the first num_tokens tokens of `seq` lie, and more."""
        place = self._places.get(seq.seq_id)
        if place is None or place.num_slots < num_tokens:
            place = self._places[seq.seq_id] = self.layout.place(self.policy.table(seq), seq)
            if place.num_slots < num_tokens:
                name = type(self.policy).__name__
                raise PlugInError(f"{name} has {place.num_slots} slots for {seq}, which needs {num_tokens}")
        return place

    def pin(self, seq: Sequence, place: Place) -> None:
        """Say where a sequence lies that the policy does not know: a registered prefix."""
        self._places[seq.seq_id] = place

    def forget(self, seq_id: int) -> None:
        """The table of one sequence is another from now on."""
        self._places.pop(seq_id, None)

    def forget_all(self) -> None:
        """Any table may be another from now on."""
        self._places.clear()
