"""The speed-up by drafts on the GPU engine, beside the simulator's with the same draws."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from testbed.core.errors import InputError
from testbed.experiments.runs.run_folder import serve
from testbed.run.build import build
from testbed.run.config import RunConfig
from testbed.run.parts import Part
from testbed.run.simulate import run
from testbed.run.speculating import SPECULATION
from testbed.speculation.acceptance import PerPosition
from testbed.speculation.ngram import NGram


class SpeedUp(NamedTuple):
    """Mean times per output token, in seconds, with and without drafts: of the engine, and of the
    simulator; and what became of the engine's drafts.
    """

    measured_s: float
    measured_without_s: float
    predicted_s: float
    predicted_without_s: float
    drafts: Mapping[str, Any]

    @property
    def measured(self) -> float:
        """The rate of tokens with drafts over that without."""
        return self.measured_without_s / self.measured_s

    @property
    def predicted(self) -> float:
        """The simulator's rate of tokens with drafts over that without."""
        return self.predicted_without_s / self.predicted_s

    @property
    def error(self) -> float:
        """The excess of the predicted speed-up over the measured one, as a share of it."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        """Four times, two ratios, and the share of drafts that was accepted."""
        drafts = self.drafts
        return (
            f"drafts at {drafts['found_share']:.1%} of the steps, {drafts['accepted_share']:.1%} "
            f"of them accepted, {drafts['tokens_per_step']:.2f} tokens a step\n"
            f"measured: {self.measured_without_s * 1e3:.3f} ms a token without, "
            f"{self.measured_s * 1e3:.3f} ms with: {self.measured:.2f} times as fast\n"
            f"predicted: {self.predicted_without_s * 1e3:.3f} ms a token without, "
            f"{self.predicted_s * 1e3:.3f} ms with: {self.predicted:.2f} times as fast "
            f"({self.error:+.1%})"
        )


def measured_speed_up(config: RunConfig) -> SpeedUp:
    """Serve the workload with drafts and without, then simulate both: with as many drafts found and
    accepted, by place, as the engine has. Raises InputError for a config without engine or drafts.
    """
    if config.engine is None or config.speculation is None:
        missing = "speculation" if config.engine else "engine"
        raise InputError(
            key="gpu speed-up",
            problem=f"the runs have no {missing}",
            remedy="engine=gpu speculation=ngram",
        )
    plain = replace(config, speculation=None)
    served, served_plain = _served(config), _served(plain)
    drafts = served[SPECULATION]
    if not drafts["drafted"]:
        raise InputError(
            key="gpu speed-up",
            problem="nothing was drafted",
            remedy="give a workload that repeats itself",
        )
    part = with_draws(config.speculation, drafts)
    simulated = run(replace(config, engine=None, speculation=part)).summary
    simulated_plain = run(replace(plain, engine=None)).summary
    return SpeedUp(
        measured_s=_token_s(served),
        measured_without_s=_token_s(served_plain),
        predicted_s=_token_s(simulated),
        predicted_without_s=_token_s(simulated_plain),
        drafts=drafts,
    )


def with_draws(speculation: Part, drafts: Mapping[str, Any]) -> Part:
    """The speculation with the shares that were counted in a run."""
    rates = drafts["accepted_by_place"] or [0.0]
    part = speculation.updated(acceptance=Part(PerPosition, {"rates": rates}))
    is_ngram = type(speculation.make("speculation")) is NGram
    return part.updated(found_share=drafts["found_share"]) if is_ngram else part


def _served(config: RunConfig) -> Mapping[str, Any]:
    """The summary of a run on the engine."""
    with TemporaryDirectory() as folder:
        return serve(build(config), Path(folder))


def _token_s(summary: Mapping[str, Any]) -> float:
    mean = summary["tpot_s"]["mean"]
    if mean is None:
        raise InputError(
            key="gpu speed-up", problem="no request has two tokens", remedy="give longer outputs"
        )
    return float(mean)
