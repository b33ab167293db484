"""Tunes two parameters of an eviction order by Optuna (pip install optuna).

python experiments/examples/tune_order.py 30
"""

import sys
from typing import Any

import optuna

from testbed import arena
from testbed.memory.prefix_cache.eviction.s3_fifo import S3Fifo

SUITE = "sprint"


def job_time(trial: Any) -> float:
    """The time of a job in percent of LRU's, with the parameters of a trial."""
    parameters = {
        "small_share": trial.suggest_float("small_share", 0.02, 0.5),
        "promote_at": trial.suggest_int("promote_at", 1, 3),
    }
    return float(arena.score((S3Fifo, parameters), suite=SUITE))


def tune(num_trials: int) -> Any:
    """The study, of which the first trial has the order's own parameters."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({"small_share": 0.1, "promote_at": 2})
    study.optimize(job_time, n_trials=num_trials)
    return study


if __name__ == "__main__":
    found = tune(int(sys.argv[1]))
    print(f"{found.trials[0].value:.2f}% of LRU's job time with the order's own parameters")
    print(f"{found.best_value:.2f}% with {found.best_params}")
