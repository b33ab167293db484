"""Sums over the iterations of a span, and integrals over its time, in closed form."""

from typing import TypeAlias

from testbed.core.slots import Growth

Span: TypeAlias = tuple[int, int, int, int]  # steps, duration_ps, and first_ps, growth_ps of their affine durations


def ramp(slope: int, span: Span) -> tuple[int, int]:
    """Summed over a span's iterations, and integrated over its time: a count that grows by `slope` with each."""
    steps, _, first_ps, growth_ps = span
    pairs = steps * (steps - 1) // 2
    return slope * pairs, slope * (first_ps * pairs + growth_ps * (pairs * (2 * steps - 1) // 3))


def at(growth: Growth, span: Span) -> tuple[int, int]:
    """The same of a count that grows from the iteration of each event on."""
    steps, duration_ps, first_ps, growth_ps = span
    w0, w1, w2 = growth
    return w0 * steps - w1, w0 * duration_ps - w1 * first_ps - growth_ps * ((w2 - w1) // 2)


def after(growth: Growth, span: Span) -> tuple[int, int]:
    """The same of a count that grows from the iteration after each event on."""
    steps, duration_ps, first_ps, growth_ps = span
    w0, w1, w2 = growth
    return w0 * steps - w0 - w1, w0 * duration_ps - (w0 + w1) * first_ps - growth_ps * ((w2 + w1) // 2)
