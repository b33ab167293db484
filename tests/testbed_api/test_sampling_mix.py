"""Requests of one run that sample in several ways: by shares, by columns of a trace, and never by
two at once.
"""

import numpy as np
import pandas as pd
import pytest
from refusals import refuses
from trace_files import put

from testbed import simulate
from testbed.core.errors import InputError
from testbed.core.request import Rows, Workload
from testbed.run.config import MixShare, parse_mix
from testbed.run.workload import with_mix
from testbed.traces.csv_lengths import CsvLengths

MIX = "1:0.5,4:0.3,beam4:0.2"
CSV = "input_tokens,output_tokens,arrival_s,n,beam\n10,20,0,1,0\n10,20,1,4,false\n30,40,2,4,True\n"
SHORT = {"rate": 4, "duration_s": 20}


def test_shares_are_drawn_as_often_as_they_weigh():
    assert parse_mix("1:0.5, beam6:.5") == [MixShare(1, False, 0.5), MixShare(6, True, 0.5)]
    ones = np.ones(20_000, np.int64)
    rows = with_mix(Rows(ones, ones), parse_mix(MIX), np.random.default_rng(0))
    kinds = pd.Series(
        list(zip(rows.num_seqs.tolist(), rows.beam.tolist(), strict=True))
    ).value_counts(normalize=True)
    assert kinds.to_dict() == pytest.approx(
        {(1, False): 0.5, (4, False): 0.3, (4, True): 0.2}, abs=0.01
    )
    half = rows.take(np.arange(0, 20_000, 2))
    assert half.num_seqs.tolist() == rows.num_seqs[::2].tolist()
    assert [r.beam for r in Workload(half, np.arange(10_000))] == rows.beam[::2].tolist()


@pytest.mark.parametrize(
    "text", ["", "4", "0:1", "-1:1", "beam:1", "1:0.5,,2:1", "1:0,2:0", "1:nan", "4x:1"]
)
def test_a_text_that_is_no_mix_is_refused(text):
    refuses(r"workload\.mix=", simulate, mix=text, **SHORT)


def test_trace_columns_set_the_sampling_of_each_request(tmp_path):
    rows = CsvLengths(put(tmp_path, "mixed.csv", CSV)).rows(None, 0)
    assert (rows.num_seqs.tolist(), rows.beam.tolist()) == ([1, 4, 4], [False, False, True])
    frame = pd.read_csv(tmp_path / "mixed.csv")
    framed = simulate(trace=frame)
    read = simulate("arrivals=replay", "trace=csv", f"trace.path={tmp_path / 'mixed.csv'}")
    assert framed.requests["num_seqs"].tolist() == [1, 4, 4]
    assert framed.summary["throughput"] == read.summary["throughput"]
    with pytest.raises(InputError, match="line 2, column beam: "):
        CsvLengths(put(tmp_path, "bad.csv", CSV.replace("1,0\n", "1,0.5\n"))).rows(None, 0)


def test_conflicting_sources_of_sampling_are_refused(tmp_path):
    path = f"trace.path={put(tmp_path, 'mixed.csv', CSV)}"
    for options in ({"mix": MIX}, {"num_seqs": 2}, {"beam": True, "num_seqs": 4}):
        refuses(
            "says how each request samples",
            simulate,
            "arrivals=replay",
            "trace=csv",
            path,
            **options,
        )
    refuses("says how each request samples", simulate, mix=MIX, num_seqs=2, **SHORT)
