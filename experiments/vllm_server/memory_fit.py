"""The terms of a server's memory, fitted to logged start-ups, and how far each shape is from a fit
without it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import NamedTuple

from testbed.core.errors import InputError
from testbed.experiments.vllm_server.startup_logs import StartUp
from testbed.vllm.memory import ServerMemory, Terms, memory_of, terms
from testbed.vllm.profiled_peak import kept_gib, network_gib, sampler_gib, sampling_gib
from testbed.vllm.stages import whole

FEWEST_SHAPES = 3


class ShapeError(NamedTuple):
    """The median error of one shape's start-ups, KV cache over the logged one, less 1: by a fit of
    all shapes, and by one of the others. gib: the latter in GiB a GPU.
    """

    name: str
    num_start_ups: int
    in_sample: float
    left_out: float
    left_out_gib: float


def fitted_terms(start_ups: Sequence[StartUp]) -> Terms:
    """The terms that ship with those that the start-ups determine in their place.

    logits, hidden: least squares over the shapes whose peak is that of sampling, each of which
    counts once. non_torch_gib: the median by the number of GPUs. visible_gib: what the logged terms
    add up to, over the utilization.
    """
    shipped = terms()
    logits, hidden, rmse = _activation_fit(start_ups)
    visible = dict(shipped.visible_gib)
    visible |= {
        name: round(size, 2) for name, size in _medians(start_ups, lambda of: of.gpu.name, _visible)
    }
    non_torch = dict(shipped.non_torch_gib)
    of_num_gpus = _medians(start_ups, lambda of: str(of.limits.num_gpus), lambda of: of.non_torch)
    non_torch |= dict(of_num_gpus)
    return replace(
        shipped,
        logits=logits,
        hidden=hidden,
        rmse_gib=rmse,
        non_torch_gib=non_torch,
        visible_gib=visible,
    )


def _visible(logged: StartUp) -> float:
    used = logged.weights + logged.activation + logged.non_torch + logged.kv_cache
    return used / logged.utilization


def _medians(
    start_ups: Sequence[StartUp],
    key: Callable[[StartUp], str],
    value: Callable[[StartUp], float],
) -> Iterable[tuple[str, float]]:
    """The median value of the start-ups of each key."""
    groups = dict[str, list[float]]()
    for logged in start_ups:
        groups.setdefault(key(logged), []).append(value(logged))
    return [(name, median(values)) for name, values in groups.items()]


def _activation_fit(start_ups: Sequence[StartUp]) -> tuple[float, float, float]:
    """logits, hidden and the residual in GiB. A shape with several limits counts as several."""
    import numpy as np

    by_batch = dict[tuple[str, int, int], list[tuple[float, float, float]]]()
    for logged in start_ups:
        model, limits = logged.model, logged.limits
        peak = logged.activation - kept_gib(model, limits, terms().images.get(model.name, {}))
        if network_gib(model, limits) > peak:
            continue  # the peak is the network's, which has no coefficient
        row = (*sampling_gib(model, limits), peak - sampler_gib(model, limits))
        key = (logged.model.name, limits.max_num_seqs, limits.max_num_batched_tokens)
        by_batch.setdefault(key, []).append(row)
    if len(by_batch) < FEWEST_SHAPES:
        raise InputError(
            key=f"{len(by_batch)} shapes and limits",
            problem="too few for a fit",
            remedy=f"log start-ups of at least {FEWEST_SHAPES}",
        )
    rows = np.array([np.mean(logged, axis=0) for logged in by_batch.values()])
    coefficients, *_ = np.linalg.lstsq(rows[:, :2], rows[:, 2], rcond=None)
    residuals = rows[:, :2] @ coefficients - rows[:, 2]
    return float(coefficients[0]), float(coefficients[1]), float(np.sqrt(np.mean(residuals**2)))


def predicted(logged: StartUp, memory_terms: Terms) -> ServerMemory:
    """The memory of a logged server by these terms."""
    return memory_of(
        whole(logged.model),
        logged.gpu,
        logged.limits,
        logged.utilization,
        of=memory_terms,
        num_positions=logged.num_positions,
    )


def errors_by_shape(start_ups: Sequence[StartUp]) -> list[ShapeError]:
    """The errors of each shape, the shape left out of its fit; empty if they are too few."""
    names = list(dict.fromkeys(logged.model.name for logged in start_ups))
    if len(names) <= FEWEST_SHAPES:
        return []
    terms, errors = fitted_terms(start_ups), list[ShapeError]()
    for name in names:
        rows = [logged for logged in start_ups if logged.model.name == name]
        others = fitted_terms([logged for logged in start_ups if logged.model.name != name])
        inside = [predicted(row, terms).kv_cache / row.kv_cache - 1 for row in rows]
        outside = [predicted(row, others).kv_cache - row.kv_cache for row in rows]
        share = [error / row.kv_cache for error, row in zip(outside, rows, strict=True)]
        errors.append(
            ShapeError(
                name=name,
                num_start_ups=len(rows),
                in_sample=median(inside),
                left_out=median(share),
                left_out_gib=mean(outside),
            )
        )
    return errors


HEAD = ("shape", "start-ups", "in the sample", "left out", "left out, GiB a GPU")


def rows_of(errors: Iterable[ShapeError]) -> Iterable[list[str]]:
    """The errors of the KV cache as a table."""
    for error in errors:
        shares = (f"{100 * share:+.2f}%" for share in (error.in_sample, error.left_out))
        yield [error.name, str(error.num_start_ups), *shares, f"{error.left_out_gib:+.3f}"]


def summary_of(errors: Sequence[ShapeError]) -> str:
    """The median and the worst error over shapes."""
    if not errors:
        return f"too few shapes to leave one out (at least {FEWEST_SHAPES + 1})"
    inside, outside = (
        sorted(abs(getattr(error, name)) for error in errors) for name in ("in_sample", "left_out")
    )
    return (
        f"KV cache over {len(errors)} shapes: median error {100 * median(outside):.2f}%, worst "
        f"{100 * outside[-1]:.2f}% left out ({100 * median(inside):.2f}% and "
        f"{100 * inside[-1]:.2f}% in the sample)"
    )


def term_lines(memory_terms: Terms, start_ups: Sequence[StartUp]) -> list[str]:
    """The fitted terms, for people."""
    others = ", ".join(
        f"{size:.2f} on {count}" for count, size in memory_terms.non_torch_gib.items()
    )
    visible = memory_terms.visible_gib[start_ups[0].gpu.name]
    return [
        f"{len(start_ups)} start-ups on {start_ups[0].gpu.name}, {visible:.2f} GiB visible",
        f"activation: {memory_terms.logits:.4f} x logits + {memory_terms.hidden:.4f} x hidden "
        f"states, residual {memory_terms.rmse_gib:.4f} GiB",
        f"other memory, GiB by GPUs: {others}",
    ]


def toml_of(memory_terms: Terms, source: str) -> str:
    """The terms as a file, which `testbed fits --terms` reads."""
    lines = [
        f"# Fitted by testbed calibrate fit memory to {source}. GiB are 2^30 bytes.",
        "[fitted]",
    ]
    for name in ("logits", "hidden", "rmse_gib", "cuda_graphs_gib"):
        lines.append(f"{name} = {getattr(memory_terms, name):.4f}")
    for name in ("non_torch_gib", "visible_gib", "encoder_params", "rope_tables"):
        lines += ["", f"[{name}]"]
        lines += [f'"{key}" = {value!r}' for key, value in getattr(memory_terms, name).items()]
    for name, image in memory_terms.images.items():
        lines += ["", f'[images."{name}"]', *(f"{key} = {value}" for key, value in image.items())]
    return "\n".join(lines) + "\n"
