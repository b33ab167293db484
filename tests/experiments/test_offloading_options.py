"""vLLM's cache below the device, as a command asks for it."""

import json

import pytest
from refusals import refuses

from testbed.experiments.vllm_server.answer import fit_of, lines_of
from testbed.experiments.vllm_server.named_server import server_of
from testbed.experiments.vllm_server.translation import expand
from testbed.vllm.command import read_command
from testbed.vllm.releases import release_numbered

RELEASE = release_numbered("0.33")
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
BYTES = 8 * 2**30


def connector(role="kv_both", **values):
    extra = {"cpu_bytes_to_use": BYTES, **values}
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    return f"--kv-transfer-config '{json.dumps({'kv_role': role, **config})}'"


def offloading(options, command=LLAMA):
    server = server_of(read_command(f"{command} {options}"), "h100-80gb", release=RELEASE)
    return server.offloading


@pytest.mark.parametrize(
    "options", ["--kv-offloading-size 8", connector(), connector(block_size=16)]
)
@pytest.mark.parametrize("num_gpus", [1, 4])
def test_a_size_is_of_all_gpus_together(options, num_gpus):
    """A block of Llama-3.1-8B has 2 MiB over all ranks, a multiple of 4,096."""
    found = offloading(f"{options} -tp {num_gpus}")
    assert (found.num_blocks, found.num_bytes) == (4096, BYTES)
    assert found.parameters == {"offload_prompt_only": True}


def test_only_whole_blocks_count():
    """A size that no whole block fills holds one less."""
    assert offloading("--kv-offloading-size 8.001").num_blocks == 4096
    assert offloading(connector(cpu_bytes_to_use=BYTES - 1)).num_blocks == 4095


def test_the_command_becomes_a_policy_with_a_tier(capsys):
    words = expand(
        f"{LLAMA} {connector(offload_prompt_only=False)}", ["gpu=h100-80gb", "release=0.33"]
    )
    assert "policy=vllm_offloading" in words
    assert "policy.offload_prompt_only=false" in words
    assert "+tier@server.tiers.dram=dram" in words


def test_fits_says_what_the_cache_holds():
    fit = fit_of(f"{LLAMA} --kv-offloading-size 200", "h100-80gb", RELEASE)
    assert fit.offloaded_tokens == 1_638_400
    assert "CPU cache below the GPUs: 1,638,400 tokens" in lines_of(fit)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (connector(eviction_policy="arc"), "eviction_policy=arc"),
        (connector(blocks_per_chunk=4), "blocks_per_chunk=4"),
        (connector(store_threshold=2), "store_threshold=2"),
        (connector(cpu_bytes_to_use=0), "cpu_bytes_to_use must be specified"),
        (connector(cpu_bytes_to_use=100), "holds no block"),
        ("--kv-offloading-size 0", "must be specified"),
        ("--kv-offloading-size 8 --kv-offloading-backend lmcache", "lmcache"),
        ("--kv-offloading-size 8 --no-enable-prefix-caching", "is off"),
        ("--kv-transfer-config nothing", "no table in JSON"),
        ("""--kv-transfer-config '{"kv_connector": "NixlConnector"}'""", "NixlConnector"),
        (connector(role="kv_producer"), "only kv_both"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(options, part):
    refuses(part, offloading, options)


def test_a_model_with_windows_is_refused():
    refuses(
        "beside windows",
        offloading,
        "--kv-offloading-size 8",
        "vllm serve google/gemma-3-27b-it --max-model-len 8192",
    )


def lmcache(**values):
    extra = {f"lmcache.{name}": value for name, value in values.items()}
    config = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": extra}
    return f"--kv-transfer-config '{json.dumps({**config, 'kv_role': 'kv_both'})}'"


@pytest.mark.parametrize(
    ("options", "command", "num_blocks"),
    [
        (lmcache(), LLAMA, 2560),  # 5 GiB, chunks of 32 MiB
        (lmcache(max_local_cpu_size=8.02), LLAMA, 4096),
        (f"{lmcache(max_local_cpu_size=8)} -tp 4", LLAMA, 16384),  # of each GPU
        (lmcache(), f"LMCACHE_MAX_LOCAL_CPU_SIZE=1 {LLAMA}", 512),
        (lmcache(max_local_cpu_size=2), f"LMCACHE_MAX_LOCAL_CPU_SIZE=1 {LLAMA}", 1024),
        (lmcache(chunk_size=16, max_local_cpu_size=0.003), LLAMA, 1),
    ],
)
def test_a_size_of_lmcache_is_of_each_gpu(options, command, num_blocks):
    found = offloading(options, command)
    assert found.num_blocks == num_blocks
    assert found.num_bytes == num_blocks * 2 * 2**20


def test_lmcache_becomes_a_policy_with_a_tier(capsys):
    options = lmcache(save_decode_cache=True, min_retrieve_tokens=512)
    words = expand(f"{LLAMA} {options}", ["gpu=h100-80gb", "release=0.33"])
    assert {
        "policy=lmcache",
        "policy.chunk_size=256",
        "policy.save_decode_cache=true",
        "policy.min_retrieve_tokens=512",
        "+tier@server.tiers.dram=dram",
    } <= set(words)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (lmcache(use_layerwise=True), "use_layerwise=True"),
        (lmcache(remote_url="lm://x"), "remote_url"),
        (lmcache(local_disk="file:///d/"), "local_disk"),
        (lmcache(local_cpu=False), "local_cpu=false"),
        (lmcache(chunk_size=100), "whole blocks"),
        (lmcache(max_local_cpu_size=0), "max_local_cpu_size=0"),
        (lmcache(max_local_cpu_size=0.001), "holds no chunk"),
        (lmcache(save_decode_cache="yes"), "true or false"),
        (f"{lmcache()} --no-enable-prefix-caching", "is off"),
        # for which vLLM takes its own connector
        (f"{lmcache()} --kv-offloading-size 8", "choose OffloadingConnector"),
    ],
)
def test_what_is_not_modelled_of_lmcache_is_refused_by_name(options, part):
    refuses(part, offloading, options)


def test_a_variable_of_lmcache_that_is_not_modelled_is_refused():
    refuses("remote_url", offloading, lmcache(), f"LMCACHE_REMOTE_URL=lm://x {LLAMA}")
