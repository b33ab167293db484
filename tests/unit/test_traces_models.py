"""The embedded models against facts about the files they were fitted to."""

import numpy as np
import pytest

from traces.fit_pairs import spearman
from traces.synthetic import Fitted

# mean prompt, mean output, Spearman, (p50, p95, p99) of prompt, and of output; counted in the length files
FACTS = {
    "sharegpt": (161.18, 338.00, 0.2143, (35, 863, 1460), (271, 899, 1280)),
    "alpaca": (18.66, 58.06, -0.2987, (15, 40, 74), (43, 160, 258)),
}


@pytest.fixture(scope="module", params=FACTS)
def model(request):
    rows = Fitted(request.param).rows(400_000, seed=1)
    return rows.prompt_len, rows.output_len, FACTS[request.param]


def test_means_within_two_percent(model):
    prompts, outputs, (mean_prompt, mean_output, *_) = model
    assert prompts.mean() == pytest.approx(mean_prompt, rel=0.02)
    assert outputs.mean() == pytest.approx(mean_output, rel=0.02)


def test_rank_correlation_is_close(model):
    prompts, outputs, (_, _, expected, *_) = model
    assert spearman(prompts, outputs) == pytest.approx(expected, abs=0.01)


def test_percentiles_within_five_percent(model):
    prompts, outputs, (*_, of_prompt, of_output) = model
    for values, expected in ((prompts, of_prompt), (outputs, of_output)):
        assert np.quantile(values, [0.5, 0.95, 0.99]) == pytest.approx(expected, rel=0.05, abs=1)


def test_rows_keep_the_filter_they_were_fitted_under(model):
    prompts, outputs, _ = model
    assert (prompts + outputs).max() < 2048
    assert min(prompts.min(), outputs.min()) >= 1
