"""Time is whole picoseconds in 64 bits; what does not fit is refused before it wraps around."""

import pytest

OPTIONS = ("outputs=summary", "hydra.run.dir=out")
SLOTTED = {"arrivals.slot_s=1e-15": "arrivals.slot_s", "arrivals.slot_s=1e-9": "arrivals.slot_s"}


def refused(result, culprit):
    code, _, error = result
    assert (code, error.count("\n")) == (2, 1)
    assert culprit in error


@pytest.mark.parametrize("last", ["10000000", "1e300"])
def test_late_time_stamps(testbed, tmp_path, last):
    (tmp_path / "late.csv").write_text(f"input_tokens,output_tokens,arrival_s\n1,2,0\n1,2,{last}\n")
    refused(testbed("run", "trace=csv", "trace.path=late.csv", "arrivals=replay", *OPTIONS), f"{float(last):,.6g} s")
    assert not (tmp_path / "out").exists()


def test_time_stamps_made_late_by_slow_motion(testbed, tmp_path):
    (tmp_path / "late.csv").write_text("input_tokens,output_tokens,arrival_s\n1,2,0\n1,2,1000\n")
    slow = ("trace=csv", "trace.path=late.csv", "arrivals=replay", "arrivals.speedup=1e-6")
    refused(testbed("run", *slow, *OPTIONS), "arrivals.speedup")


def test_a_long_duration(testbed):
    refused(testbed("run", "arrivals.duration_s=1e8", "arrivals.rate=1e-7", *OPTIONS), "arrivals.duration_s")


@pytest.mark.parametrize("slot", SLOTTED)
def test_slots_without_number(testbed, slot):
    refused(testbed("run", "arrivals=slotted", slot, *OPTIONS), SLOTTED[slot])
