"""A misspelt key is refused in one line that names the key that was perhaps meant, wherever keys are taken."""

import pytest

import testbed as front
from experiments.runs.misspelt import keys_of, nearest
from testbed.core.errors import InputError

MEANT = {
    "arrivals.rat": "arrivals.rate",
    "arivals.rate": "arrivals.rate",
    "rate": "arrivals.rate",
    "block_size": "policy.block_size",
    "policy.blok_size": "policy.block_size",
    "arrivals.rate.x": "arrivals.rate",
    "polcy": "policy",
    "sed": "seed",
    "slo.ttft": "slo.ttft_s",
    "server.gpu.memory_byts": "server.gpu.memory_bytes",
    "hydra.run.dr": "hydra.run.dir",
    "protcol": "protocol",
    "cost.foo": None,
    "policy.x": None,
    "xyzzy": None,
}


@pytest.mark.parametrize("key", MEANT)
def test_nearest(key):
    assert nearest(key, keys_of([])) == MEANT[key]


def test_keys_are_those_of_what_was_chosen():
    assert "policy.host_slots" not in keys_of([])
    assert nearest("scheduler.chunk_siz", keys_of([])) != nearest("trace.pat", keys_of(["trace=csv"])) == "trace.path"
    assert "seed" in keys_of(["policy=my_module:MyPolicy", "trace=a_plug_in"])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("run arrivals.rat=2", "no key 'arrivals.rat'; did you mean arrivals.rate?"),
        ("run -m seed=0,1 arrivals.rat=2", "no key 'arrivals.rat'; did you mean arrivals.rate?"),
        ("run ~polic", "did you mean policy?"),
        ("run +arrivals.rat=2", "takes no rat; did you mean rate? remove by ~arrivals.rat"),
        ("run cost.foo=2", "+cost.foo=... adds it for a class of your own"),
        ("capacity arrivals.rat=2 slo.ttft_s=1", "did you mean arrivals.rate?"),
        ("validate log.csv server.num_block=2", "did you mean server.num_blocks?"),
    ],
)
def test_on_the_command_line(testbed, tmp_path, words, hint):
    (tmp_path / "log.csv").write_text("input_tokens,output_tokens,arrival_s,first_token_s,finish_s\n9,3,0,0.1,0.2\n")
    code, output, error = testbed(*words.split())
    assert (code, error.count("\n"), "Traceback" in output + error) == (2, 1, False)
    assert hint in error
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize(
    ("options", "meant"),
    [({"rat": 2}, "rate"), ({"policy.blok_size": 2}, "policy.block_size"), ({"polcy": "paged"}, "policy")],
)
def test_in_python(options, meant):
    with pytest.raises(InputError, match=f"did you mean {meant}\\?"):
        front.simulate(**options)
