"""FlashInfer's kernels for a decode batch of ours, by its public interface."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.kernels.measure.bench_inputs import Calls, DecodeInputs

WORKSPACE_BYTES = 256 << 20
LAYOUT = "HND"  # of a block: kv heads, tokens, values
Makers = Mapping[str, Callable[[], Calls]]  # of the calls of a kernel, one per layer


class FlashInfer:
    """The library that is installed; raises InputError if there is none."""

    def __init__(self) -> None:
        try:
            self.library: Any = import_module("flashinfer")
        except ImportError as error:
            raise InputError(
                key="--kinds", problem=str(error), remedy="install flashinfer-python"
            ) from error

    def kernels(self, inputs: DecodeInputs, prefix_blocks: int) -> Makers:
        """All that can decode. prefix_blocks: with which all block tables begin."""
        found = {
            "cuda cores": partial(self._wrapped, inputs, use_tensor_cores=False),
            "tensor cores": partial(self._wrapped, inputs, use_tensor_cores=True),
            "xqa": partial(self._xqa, inputs),
        }
        if prefix_blocks:
            found["cascade"] = partial(self._cascade, inputs, prefix_blocks)
        return {f"FlashInfer {self.library.__version__} {name}": found[name] for name in found}

    def _wrapped(self, inputs: DecodeInputs, *, use_tensor_cores: bool) -> Calls:
        wrapper = self.library.BatchDecodeWithPagedKVCacheWrapper(
            _workspace(), LAYOUT, use_tensor_cores=use_tensor_cores
        )
        wrapper.plan(*_pages(inputs, inputs.tables), *_heads(inputs), q_data_type=torch.float16)
        return [partial(wrapper.run, q, kv, out=out) for q, kv, out in _layers(inputs)]

    def _xqa(self, inputs: DecodeInputs) -> Calls:
        decode = partial(
            self.library.decode.xqa_batch_decode_with_kv_cache,
            workspace_buffer=_workspace(),
            block_tables=inputs.tables,
            seq_lens=inputs.context_lens.to(torch.uint32),
            max_seq_len=inputs.longest,
            bmm1_scale=inputs.shape.head_size**-0.5,
            kv_layout=LAYOUT,
        )
        return [partial(decode, q, kv, out=out) for q, kv, out in _layers(inputs)]

    def _cascade(self, inputs: DecodeInputs, prefix_blocks: int) -> Calls:
        """The shared blocks as one level, each sequence's own as the other."""
        num_seqs, tables = len(inputs.lens), inputs.tables
        levels = tables[:1, :prefix_blocks], tables[:, prefix_blocks:]
        wrapper = self.library.MultiLevelCascadeAttentionWrapper(2, _workspace(), LAYOUT)
        queries = [_begins(1, num_seqs), _begins(num_seqs, 1)]
        pages = zip(*(_pages(inputs, level) for level in levels), strict=True)
        wrapper.plan(queries, *map(list, pages), *_heads(inputs), q_data_type=torch.float16)
        return [partial(wrapper.run, q, kv) for q, kv, _ in _layers(inputs)]


def _layers(inputs: DecodeInputs) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor], Tensor]]:
    caches = zip(inputs.k_cache, inputs.v_cache, strict=True)
    return zip(inputs.q, caches, torch.empty_like(inputs.out), strict=True)


def _heads(inputs: DecodeInputs) -> tuple[int, int, int, int]:
    shape = inputs.shape
    return shape.num_heads, shape.num_kv_heads, shape.head_size, shape.block_size


def _pages(inputs: DecodeInputs, tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The begin of each row's blocks, the blocks, and the tokens in a row's last one, of
    sequences of equal length.
    """
    rows, width = tables.shape
    last = (inputs.longest - 1) % inputs.shape.block_size + 1
    lasts = torch.full((rows,), last, dtype=torch.int32, device="cuda")
    return _begins(rows, width), tables.reshape(-1).contiguous(), lasts


def _begins(rows: int, width: int) -> Tensor:
    return torch.arange(rows + 1, dtype=torch.int32, device="cuda") * width


def _workspace() -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
