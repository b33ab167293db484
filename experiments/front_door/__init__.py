"""What `import testbed` offers to a notebook; the same configs and the same code as the command line."""

from experiments.front_door.capacity import Capacity, capacity
from experiments.front_door.simulate import Result, simulate
from experiments.front_door.sweep import sweep

__all__ = ["Capacity", "Result", "capacity", "simulate", "sweep"]
