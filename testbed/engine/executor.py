"""Executors of plans: a simulation that computes their durations, or a GPU."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, TypeAlias

from testbed.core.sequence import SequenceGroup
from testbed.core.slots import Transfer, Usage
from testbed.cost.model import Affine, CostModel, Launch, Work
from testbed.engine.clock import Alarm, Clock
from testbed.engine.totals import SpanMemory
from testbed.sched.plan import Outcome, Plan, Results

Waiting: TypeAlias = Generator[Any, None, Results]


class Flight:
    """A plan in flight, from `start` until it is committed.

    Attributes:
        start_ps: when its first iteration begins.
        end_ps: when the results of the last iteration are read.
        computed_ps: when the GPU has computed the last iteration.
        launch: how the host launches it, if its durations lack that.
        launched_ps: when the host has launched it.
        work: what its first iteration computes.
        usage: the pool as its first iteration sees it.
        saved: slots that sharing saves in it.
        durations: of its iterations, if they are known beforehand.
        growth_ps: what each of them takes more than the one before, on the fused path.
        num_running: requests that run when it begins, on the fused path.
        num_waiting: requests in the queue when it begins.
        num_swapped: requests on the host then.
        steps: how many iterations of it are carried out.
        num_delivered: iterations whose tokens were delivered before the results.
        is_last: the last iteration has begun, so that their number is final; ended, accepted,
            outcome and memory are known then if the next plan is made ahead.
        repeats: it may be carried out several times, whenever outputs end.
        is_promised: the policy has promised its steps, and takes all of them at the end.
        growing: members of the batch when it begins, each of which stores a token in each step.
        ended: ids of the requests that have their whole output after it.
        accepted: drafts that the model accepts, by request id.
        outcome: what the scheduler makes of it.
        memory: how its iterations use the pool.
        late: transfers that begin at the end.
        plan: the plan.
        stepping: ids of the requests just swapped in that take a step.
        preempted_behind: groups that a plan made ahead has preempted, which computes nothing.
        decoding: ids of all requests that take its steps, if a listener wants tokens.
    """

    start_ps: int
    end_ps: int
    computed_ps: int
    launch: Launch | None = None
    launched_ps: int = 0
    work: Work
    usage: Usage
    saved: int
    durations: Affine
    growth_ps: int
    num_running: int
    num_waiting: int
    num_swapped: int
    steps: int = 1
    num_delivered: int = 0
    is_last: bool = False
    repeats: bool = False
    is_promised: bool = False
    growing: int = 0
    ended: tuple[int, ...] = ()
    accepted: Mapping[int, int] = {}
    outcome: Outcome | None = None
    memory: SpanMemory | None = None
    late: tuple[Transfer, ...] = ()

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stepping: list[int] = []
        self.preempted_behind: list[SequenceGroup] = []
        self.decoding: list[int] = []


class Executor(ABC):
    """Carries plans out in the order in which they are started.

    An engine calls `start`; then, when all plans before it are committed, `begin`, or `drop` if
    nothing of it is left. After `begin` it waits by `wait`, commits the results, and calls
    `committed`. It is resumed by `alarm`. on_landed is called when a transfer in the background has
    landed, on_step at the end of each iteration but the last, if several are carried out at once
    and it is set. decode_cost: the cost model, if it alone says how long iterations without a
    launch take, so that the engine may leave `start`, `begin` and `wait` out. windows: sizes in
    tokens of the sliding windows whose reads a plan's work names. follows_groups: `added` does
    something.
    """

    follows_groups: ClassVar[bool] = True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alarm: Alarm = clock.alarm()
        self.on_landed: Callable[[], None] | None = None
        self.on_step: Callable[[Flight], None] | None = None
        self.decode_cost: CostModel | None = None
        self.windows: tuple[int, ...] = ()

    @abstractmethod
    def start(self, plan: Plan) -> Flight:
        """Take a plan, behind those that are in flight."""

    @abstractmethod
    def begin(self, flight: Flight, max_steps: int, end_by_ps: int, plan_by_ps: int) -> None:
        """The plan's first iteration begins, and at most max_steps iterations are carried out:
        they end at the first boundary at or after end_by_ps, or so that the next plan is made at
        the first boundary at or after plan_by_ps.
        """

    @abstractmethod
    def drop(self, flight: Flight) -> None:
        """The plan was started and will not begin: nothing of it is left to compute."""

    @abstractmethod
    def wait_for_last(self, flight: Flight) -> Generator[Any, None, None]:
        """Wait until the last iteration begins, when the next plan may be made ahead."""

    @abstractmethod
    def wait(self, flight: Flight) -> Waiting:
        """Wait until the iterations have run; what they have brought."""

    @abstractmethod
    def committed(self, flight: Flight, outcome: Outcome, results: Results) -> int:
        """The results are committed; when the last iteration has ended."""

    @abstractmethod
    def move(self, plan: Plan) -> None:
        """Perform the moves of a plan that computes nothing and takes no time."""

    @abstractmethod
    def take_landed(self) -> list[int]:
        """Called before each plan: the transfers that have landed since the last call."""

    @abstractmethod
    def drop_transfers(self) -> None:
        """The engine has failed: what is on the way in the background will not land."""

    @property
    @abstractmethod
    def has_transfers(self) -> bool:
        """True if transfers in the background are under way."""

    @property
    @abstractmethod
    def has_landed(self) -> bool:
        """True if `take_landed` has something to give."""

    @abstractmethod
    def cut(self, flight: Flight, at_ps: int) -> None:
        """Leave out the iterations that would begin after the next plan can be made at at_ps."""

    def added(self, group: SequenceGroup) -> None:  # noqa: B027 (most follow plans)
        """The request of a group has arrived."""

    def removed(self, group: SequenceGroup) -> None:  # noqa: B027
        """The request of a group was rejected or cancelled."""
