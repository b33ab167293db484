#!/bin/sh
# behaviour: the names of the files of SGLang's file storage have a page's tokens, the model and the rank, but not the type of K and V, so that a start with fp8 or float16 finds the pages of one with bfloat16 and reads their bytes as its own
# package: sglang 0.5.23
# date: 2026-11-29
# guess: a server with another --kv-cache-dtype or --dtype has other pages, and finds none of those
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 triton numpy IPython aiohttp \
    msgspec orjson packaging pillow psutil pybase64 pydantic pyzmq requests starlette tqdm
"$folder/venv/bin/pip" install -q --no-deps sglang==0.5.23
cd "$folder"
"$folder/venv/bin/python" - 2>errors <<'END' || { cat errors >&2; exit 1; }
from importlib.metadata import version
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
from sglang.srt.mem_cache.utils import get_hash_str

PAGE = [*range(16)]  # tokens
NUM_VALUES = 64


def start():
    """The storage of a new start of one GPU, whose configuration has no type of K and V."""
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="org/model",
    )
    return HiCacheFile(config, "pages")


print("sglang", version("sglang"), "- a page that a start with bfloat16 has written")
key = get_hash_str(PAGE, None)
values = torch.arange(1, NUM_VALUES + 1).to(torch.bfloat16)
assert start().set(key, values)
(file,) = Path("pages").iterdir()
print("file:", file.name, "of", file.stat().st_size, "bytes")
print("guess: a start with another type finds no page")
for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
    later = start()
    found = later.exists(key)
    page = later.get(key, torch.zeros(NUM_VALUES, dtype=dtype))
    are_equal = torch.equal(page.float(), values.float())
    shown = [round(value, 3) for value in page[:4].float().tolist()]
    print(f"seen with {dtype}: found {found}, first values {shown}, equal {are_equal}")
    assert found and are_equal == (dtype is torch.bfloat16)
END
