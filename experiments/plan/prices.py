"""The price of an hour of a deployment: its GPU hours, or money by the user's own prices."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from testbed.core.errors import InputError
from testbed.core.spelling import did_you_mean
from testbed.experiments.plan.space import Candidate

KEYS = ("date", "currency", "per_gpu_hour")
FORMAT = 'three keys, such as date = 2026-11-26, currency = "USD", per_gpu_hour = { h200 = 3.5 }'


class Rate(Protocol):
    """The unit in which hours of deployments are counted."""

    @property
    def unit(self) -> str:
        """The unit of an hour's price."""

    @property
    def source(self) -> str:
        """The source of the numbers."""

    def hourly(self, candidate: Candidate) -> float:
        """The price of an hour of the whole deployment."""


class GpuHours:
    """Every GPU's hour counts one, of whatever type it is."""

    unit = "GPU h"
    source = (
        "cost: GPU hours, for no prices are given: an hour of one GPU costs 1 GPU h, of an H200 as "
        "of an L4 (--prices FILE: your money per GPU hour)"
    )

    def hourly(self, candidate: Candidate) -> float:
        return float(candidate.num_gpus)


@dataclass(frozen=True)
class Prices:
    """The user's prices of a GPU's hour, by our names of GPUs, and the date they are of."""

    path: Path
    date: str
    unit: str
    per_gpu_hour: Mapping[str, float]

    @property
    def source(self) -> str:
        """The file, and the date that it gives."""
        return f"prices: {self.path}, of {self.date}, in {self.unit}"

    def hourly(self, candidate: Candidate) -> float:
        """Raises InputError for a GPU without a price."""
        return sum(self._price(gpu) * count for gpu, count in candidate.gpus.items())

    def _price(self, gpu: str) -> float:
        price = self.per_gpu_hour.get(gpu)
        if price is None:
            near = did_you_mean(gpu, list(self.per_gpu_hour))
            raise InputError(
                key=self.path, problem=f"per_gpu_hour has no {gpu}{near}", remedy="add its price"
            )
        return price


def read_prices(path: Path) -> Prices:
    """The prices of a TOML file such as experiments/examples/prices.toml; raises InputError if
    it is no such file.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(key=path, problem=f"cannot be read: {error}", remedy=FORMAT) from None
    unknown = [key for key in values if key not in KEYS]
    missing = [key for key in KEYS if key not in values]
    if unknown or missing or not isinstance(values["per_gpu_hour"], dict):
        named = ", ".join([*unknown, *missing]) or "per_gpu_hour"
        raise InputError(key=f"{path}: {named}", problem="is no file of prices", remedy=FORMAT)
    for gpu, price in values["per_gpu_hour"].items():
        _check_price(path, gpu, price)
    return Prices(path, str(values["date"]), str(values["currency"]), values["per_gpu_hour"])


def _check_price(path: Path, gpu: str, price: Any) -> None:
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if not is_number or not (isfinite(price) and price > 0):
        raise InputError(
            key=f"{path}: per_gpu_hour.{gpu}", value=repr(price), problem="must be a number above 0"
        )
