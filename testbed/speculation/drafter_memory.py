"""The memory of the GPUs that a drafter takes."""

from typing import TYPE_CHECKING, NamedTuple

from testbed.core.specs import ModelSpec

if TYPE_CHECKING:  # it needs numpy, and a server without drafts does not
    from testbed.speculation.speculation import Speculation


class DrafterMemory(NamedTuple):
    """Bytes over all GPUs: token_bytes of a token's K and V in num_layers layers together, and
    those of the weights.
    """

    token_bytes: int = 0
    num_layers: int = 0
    weight_bytes: int = 0


def drafter_memory(
    speculation: "Speculation | None", model: ModelSpec, num_gpus: int
) -> DrafterMemory:
    """The memory of what drafts for the model; none without speculation."""
    drafter = None if speculation is None else speculation.drafter(model)
    if speculation is None or drafter is None or not speculation.takes_memory:
        return DrafterMemory()
    weight_bytes = speculation.weight_bytes(model) + num_gpus * speculation.replicated_bytes(model)
    return DrafterMemory(
        drafter.kv_bytes_on(num_gpus),
        drafter.num_attention_layers,
        weight_bytes,
    )
