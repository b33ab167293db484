"""Drafters and a model's states."""

import pytest

from testbed.core.shapes import read_model
from testbed.speculation.heads import Heads


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_a_state_has_room_for_each_draft(num_drafts):
    model = read_model("qwen3-next-80b-a3b")
    more = Heads(num_drafts).with_draft_states(model).states.state_bytes - model.states.state_bytes
    assert more == num_drafts * model.states.draft_bytes > 0


@pytest.mark.parametrize(
    ("name", "num_layers", "num_ffn_layers"),
    [("llama-3-8b", 34, None), ("qwen3-next-80b-a3b", 50, None), ("nemotron-h-8b", 30, 26)],
)
def test_heads_are_layers_more_of_the_model(name, num_layers, num_ffn_layers):
    deeper = Heads(3, num_layers=2).deeper(read_model(name))
    assert (deeper.num_layers, deeper.num_ffn_layers) == (num_layers, num_ffn_layers)


def test_a_model_without_states_stays_as_it_is():
    model = read_model("llama-3-8b")
    assert Heads(3).with_draft_states(model) is model
