"""What the sweep of mixed batches does without a GPU."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from kernels.measure.mixed_batches import MAX_TOKENS, decode_grid, together


def test_the_shorter_list_of_layers_starts_over() -> None:
    done: list[str] = []
    prefill = [lambda i=i: done.append(f"prompt {i}") for i in range(2)]
    decode = [lambda i=i: done.append(f"decode {i}") for i in range(3)]
    for call in together(prefill, decode):
        call()
    assert done == ["prompt 0", "decode 0", "prompt 1", "decode 1", "prompt 0", "decode 2"]


def test_batches_stay_within_the_model_and_the_pool() -> None:
    grid = decode_grid(1024)
    assert max(mean for _, mean in grid) < 1024
    assert all(n * mean <= MAX_TOKENS for n, mean in decode_grid(16_384))


def test_one_section_is_added_and_the_rest_of_a_profile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from kernels.measure import calibrate
    from testbed.cost.sections import read_profile

    shipped = read_profile("h200-opt-66b-tp4")
    sections, swept = shipped["sections"], []
    there = {name: body for name, body in sections.items() if name != "mixed_attention"}
    monkeypatch.setattr(calibrate, "fingerprint", lambda: {"device": shipped["fingerprint"]["device"], "now": True})
    monkeypatch.setattr(calibrate, "Pools", lambda size: size)
    monkeypatch.setattr(calibrate, "warm_up", lambda: None)
    point = [16, 0, 0, 0, 1.0, 1.0, 1.0]
    monkeypatch.setattr(calibrate, "mixed_attention", lambda *told: swept.append(told) or [point])
    profile = calibrate.with_mixed_section({**shipped, "sections": there})
    assert {name: body for name, body in profile["sections"].items() if name != "mixed_attention"} == there
    assert profile["sections"]["mixed_attention"]["points"] == [point]
    assert profile["fingerprint"]["mixed_attention"]["now"]
    ((_, _, shape, longest),) = swept
    assert (shape.num_heads, shape.block_size, longest) == (18, 16, 2048)
    monkeypatch.setattr(calibrate, "fingerprint", lambda: {"device": "another"})
    with pytest.raises(SystemExit, match="this is another"):
        calibrate.with_mixed_section(shipped)
