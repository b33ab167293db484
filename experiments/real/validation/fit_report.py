"""Fitted times and factors as lines for people."""

from collections.abc import Iterator, Sequence
from math import inf

from testbed.experiments.real.validation.software_fit import KEYS, Fitted


def report(fitted: Fitted, names: Sequence[str]) -> Iterator[str]:
    """One line per time, per log's slowness and per correlated pair, and the overrides to use."""
    for name in names:
        if name in fitted.times_s:
            value, error = fitted.times_s[name], fitted.standard_errors[name]
            weak = "; not distinguishable from zero" if value < 2 * error else ""
            yield f"{name:<12}{value * 1e6:12.2f} us, standard error {error * 1e6:.2f} us{weak}"
        else:
            yield f"{name:<12}        none (below zero)"
    for path, slowness in fitted.slowness.items():
        spread = fitted.standard_errors.get(path)
        follows = (
            "which follows from the others'" if spread is None else f"standard error {spread:.3f}"
        )
        yield f"{path}: slowness {slowness:.3f}, {follows}"
    if any(
        abs(slowness - 1) > 2 * fitted.standard_errors.get(path, inf)
        for path, slowness in fitted.slowness.items()
    ):
        yield (
            "the logs disagree by more than two standard errors: they are not of one machine at "
            "one speed"
        )
    for (first, other), value in fitted.alike.items():
        yield (
            f"{first} and {other} cannot be separated by these logs (correlation {value:+.2f}); "
            "only their sum is known"
        )
    yield (
        f"remaining error: {100 * fitted.error:.1f}% of a request's TTFT or TPOT, root mean square"
    )
    yield " ".join(
        f"cost.choices.{key}={fitted.times_s.get(name, 0.0):.4g}" for name, key in KEYS.items()
    )


def scaled_by(fitted: Fitted) -> Iterator[str]:
    """One line for the factor of all kernels, one per time, and one per correlated pair."""
    ((path, factor),) = fitted.slowness.items()
    yield (
        f"all kernels: {factor:.3f} times as long, standard error "
        f"{fitted.standard_errors[path]:.3f}"
    )
    for name, seconds in fitted.times_s.items():
        yield (
            f"{name:<12}{seconds * 1e6:12.2f} us, standard error "
            f"{fitted.standard_errors[name] * 1e6:.2f} us"
        )
    for (first, other), value in fitted.alike.items():
        names = [("kernels" if name == path else name) for name in (first, other)]
        yield (
            f"{names[0]} and {names[1]} cannot be separated by this log (correlation {value:+.2f})"
        )
