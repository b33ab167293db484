"""The pool of tokens of SGLang's server: how many it has, in pages, and the lines of its log."""

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.core.errors import DoesNotStart, InputError
from testbed.core.specs import GIB, GpuSpec, ModelSpec
from testbed.sglang.command import SERVE
from testbed.sglang.window_pools import CellBytes, Sizes
from testbed.vllm.generations import capability_of

BLACKWELL = 10
# torch's names of the types that --dtype and --kv-cache-dtype name (kv_cache_dtype.py)
WEIGHT_TYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
CACHE_TYPES = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}
IN_FLOAT16 = ("llama-13b", "llama-2-", "opt-")  # by config.json; all others in bfloat16
WITH_WINDOW_POOL = ("GptOssForCausalLM",)
# Classes whose layers with a window have a pool of their own too (is_hybrid_swa_model)
NOT_MODELLED = (
    "Beam",
    "DeepseekV4",
    "DiffusionGemma",
    "EmbeddingGemma2",
    "Gemma4",
    "GraniteMoeSWA",
    "GraniteSWA",
    "IQuestQ1",
    "Inkling",
    "Laguna",
    "Llama4",
    "Mellum",
    "MiMoV2",
    "MuseGlimmer",
    "Step3p",
    "UnlimitedOCR",
)
# Tokens of a page that a GPU's attention kernels take; if another is asked for, the last one
HEADS_PAGES, LATENT_PAGES, INDEXED_PAGE = (16, 32, 128, 64), (32, 64), 64
PAGED_LATENTS = ("DeepseekV3ForCausalLM",)  # with such kernels on Blackwell
UNPAGED_LATENTS = ("DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM")
# The classes of models that ship, by the beginning of their name, as far as SGLang's pool asks
CLASSES = {
    "deepseek-v2": "DeepseekV2ForCausalLM",
    "deepseek-v3": "DeepseekV3ForCausalLM",
    "gemma-4": "Gemma4ForCausalLM",
    "glm-4.7-flash": "Glm4MoeLiteForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "kimi-k2": "DeepseekV3ForCausalLM",
    "llama-4": "Llama4ForConditionalGeneration",
}


def class_of(model: ModelSpec) -> str:
    """The class of a model that ships; empty if SGLang's pool asks for none."""
    return next((kind for name, kind in CLASSES.items() if model.name.startswith(name)), "")


def cache_type(model: ModelSpec, values: Mapping[str, str]) -> str:
    """torch's name of the type of a cached value, under the options of these values."""
    if named := CACHE_TYPES.get(values.get("--kv-cache-dtype", "")):
        return named
    if model.kv_dtype_bytes == 1:  # as the checkpoint says
        return CACHE_TYPES["fp8_e4m3"]
    own = "float16" if model.name.startswith(IN_FLOAT16) else "bfloat16"
    return WEIGHT_TYPES.get(values.get("--dtype", ""), own)


@dataclass(frozen=True)
class TokenPool:
    """num_tokens: max_total_num_tokens, in whole pages. window_tokens: of the pool of layers with a
    window; None without one.
    """

    num_tokens: int
    page_size: int
    cells: CellBytes
    window_tokens: int | None = None

    @property
    def gib(self) -> float:
        """On each GPU."""
        windows = self.cells.window * (self.window_tokens or 0)
        return (self.num_tokens * self.cells.full + windows) / GIB


def has_window_pool(model: ModelSpec, kind: str) -> bool:
    """True if SGLang keeps a pool for layers with a window; else they store all tokens. kind: the
    model's class.
    """
    return model.window is not None and kind in WITH_WINDOW_POOL


def cells_of(model: ModelSpec, num_gpus: int, *, windows: bool) -> CellBytes:
    """The bytes of a token. windows: layers with a window have a pool of their own."""
    if not windows:
        return CellBytes(model.kv_bytes_on(num_gpus) // num_gpus)
    sizes = {True: 0, False: 0}
    for group in model.groups_on(num_gpus):
        sizes[group.window is None] += group.num_layers * group.slot_bytes // num_gpus
    return CellBytes(sizes[True], sizes[False])


def token_pool(cells: CellBytes, page_size: int, sizes: Sizes) -> TokenPool:
    """The pool of these tokens. Raises DoesNotStart for none."""
    num_tokens, window_tokens = sizes
    if num_tokens < 1:
        raise DoesNotStart(
            key=SERVE,
            system="SGLang",
            problem="the pool has no page",
            remedy="raise --max-total-tokens, --mem-fraction-static or --tp-size",
        )
    return TokenPool(num_tokens, page_size, cells, window_tokens)


def check_modelled(model: ModelSpec, kind: str) -> None:
    """Raise InputError for a model whose pool follows from more than its tokens."""
    reasons = {
        "layers with a state": model.states is not None,
        "a vision tower": model.vision_params is not None,
        f"the class {kind}": kind.startswith(NOT_MODELLED),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise InputError(
                key="model",
                value=model.name,
                problem=(
                    f"has {reason}, for which SGLang divides its memory otherwise, which is not "
                    "modelled"
                ),
                remedy="choose another model",
            )


def check_sparse(model: ModelSpec, gpu: GpuSpec, kv_cache_dtype: str) -> None:
    """Raise InputError for sparse attention over 8 bits, which Blackwell has by default: SGLang
    packs such latents with their scales. kv_cache_dtype: of the command.
    """
    if model.latent is None or not model.latent.index_bytes:
        return
    by_default = kv_cache_dtype == "auto" and capability_of(gpu)[0] >= BLACKWELL
    if kv_cache_dtype.startswith("fp8") or by_default:
        whose = f"the default on {gpu.name}" if by_default else kv_cache_dtype
        raise InputError(
            key="model",
            value=model.name,
            problem=(
                f"sparse attention over a KV cache of 8 bits ({whose}), of which SGLang packs "
                "tokens with their scales, is not modelled"
            ),
            remedy="--kv-cache-dtype bfloat16",
        )


def page_size_of(model: ModelSpec, gpu: GpuSpec, kind: str, asked: int | None) -> int:
    """The tokens of a page: those asked for, if the GPU's attention kernels take them."""
    if model.latent is not None and model.latent.index_bytes:
        return INDEXED_PAGE
    taken = _pages_taken(model, gpu, kind)
    if not taken:
        return asked or 1
    return asked if asked in taken else taken[-1]


def _pages_taken(model: ModelSpec, gpu: GpuSpec, kind: str) -> tuple[int, ...]:
    """The tokens of pages of which the kernels of a GPU take one; none: they take any."""
    if capability_of(gpu)[0] != BLACKWELL:
        return ()
    if model.latent is None:
        return HEADS_PAGES
    if kind in PAGED_LATENTS:
        return LATENT_PAGES
    if kind in UNPAGED_LATENTS:
        return ()
    raise InputError(
        key="model",
        value=model.name,
        problem=(
            f"the page of latents on {gpu.name} follows from the model's class, of which "
            f"{', '.join((*PAGED_LATENTS, *UNPAGED_LATENTS))} are known"
        ),
        remedy="choose another GPU",
    )
