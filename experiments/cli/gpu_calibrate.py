"""`testbed gpu calibrate`: a GPU, or the vLLM on it, measured into a cost profile."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from testbed.core.errors import InputError
from testbed.experiments.cli.parameters import AtLeastOne
from testbed.experiments.cli.vllm_parameters import (
    LIMIT_S,
    LimitSeconds,
    Python,
    ServerCommand,
    refuse_given,
)
from testbed.kernels import gpu_commands

System = Annotated[
    Literal["kernels", "engine", "vllm"],
    Parameter(
        help="what is measured: this project's kernels; also whole iterations of its GPU engine, "
        "which keep the rest of the shipped profile; or the vLLM that is installed"
    ),
]
ModelNames = Annotated[
    list[str],
    Parameter(
        consume_multiple=True,
        metavar="NAME",
        help="models that ship (testbed list model), or NAME:TP with a degree of its own",
    ),
]
Degree = Annotated[AtLeastOne, Parameter(help="tensor-parallel degree (default: 1)")]
ProfileOut = Annotated[
    Path, Parameter(metavar="FILE", help="profile JSON, or a folder for several models")
]
OfVllm = Annotated[ServerCommand, Parameter(help="--system vllm: the server")]
Keep = Annotated[Path, Parameter(metavar="DIR", help="--system vllm: keep its logged iterations")]


@Parameter(name="*")
@dataclass(frozen=True)
class KernelOptions:
    """Options that only the systems kernels and engine read; None: not given."""

    model: ModelNames | None = None
    tp: Degree | None = None

    def calibrate(self, out: Path, *, with_engine: bool) -> None:
        """Measure the kernels, and iterations of the engine if asked."""
        if not self.model:
            raise InputError(
                key="--model", problem="is missing", remedy="`testbed list model` shows the names"
            )
        gpu_commands.calibrate(self.model, tp=self.tp or 1, out=out, engine=with_engine)


@Parameter(name="*")
@dataclass(frozen=True)
class VllmOptions:
    """Options that only the system vllm reads; None: not given."""

    from_vllm: OfVllm | None = None
    python: Python | None = None
    keep: Keep | None = None
    limit_s: LimitSeconds | None = None

    def calibrate(self, out: Path) -> None:
        """Measure iterations of the vLLM that is installed."""
        from testbed.experiments.real.vllm_engine.calibrate_vllm import calibrate as calibrate_vllm

        if self.from_vllm is None:
            raise InputError(
                key="--system",
                value="vllm",
                problem="needs the server",
                remedy='--from-vllm "vllm serve MODEL ..."',
            )
        python, limit_s = self.python or sys.executable, self.limit_s or LIMIT_S
        calibrate_vllm(self.from_vllm, python, out, self.keep, limit_s)


NO_KERNEL_OPTIONS, NO_VLLM_OPTIONS = KernelOptions(), VllmOptions()


def calibrate(
    *,
    system: System = "kernels",
    out: ProfileOut,
    of_kernels: KernelOptions = NO_KERNEL_OPTIONS,
    of_vllm: VllmOptions = NO_VLLM_OPTIONS,
) -> None:
    """Measure a GPU, or the vLLM on it, into a cost profile.

    Kernels are verified first, then swept, and the fit is tested on batches outside the sweep. A
    vLLM runs in a process of its own with the options of its command; add --load-format dummy for
    random weights. For example:

    testbed gpu calibrate --system vllm --from-vllm "vllm serve MODEL" --out mine.json
    """
    if system == "vllm":
        refuse_given(asdict(of_kernels), f"--system {system}")
        return of_vllm.calibrate(out)
    refuse_given(asdict(of_vllm), f"--system {system}")
    of_kernels.calibrate(out, with_engine=system == "engine")
