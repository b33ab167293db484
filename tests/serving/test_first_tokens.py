"""A live simulation first sends tokens to clients that have none."""

import asyncio

import pytest

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason=f"serving needs {package}")

from served import WORDS  # noqa: E402

from testbed.core.request import PS, Request  # noqa: E402
from testbed.experiments.runs.compose import configured  # noqa: E402
from testbed.serving.http_server import ServeOptions, make_service  # noqa: E402
from testbed.serving.sequence_text import Words  # noqa: E402
from testbed.serving.served_prompt import Served  # noqa: E402


@pytest.fixture(scope="module")
def live():
    return make_service(configured(list(WORDS)), ServeOptions()).live


def served(live, number):
    events, arrived = asyncio.Queue(), asyncio.get_running_loop().create_future()
    request = Request(number, 0, 8, 4)
    live.unfinished[number] = Served(0, request, [Words(4, 4)], events, arrived, 0.0)
    return live.unfinished[number], events


def test_first_tokens_overtake_later_ones_and_ends_keep_their_order(live):
    async def sent():
        old, old_events = served(live, 0)
        _, new_events = served(live, 1)
        old.num_steps, old.first_ps = 1, PS
        live.token_of(0, 2 * PS)
        live.on_finished(0, 2 * PS)
        live.token_of(1, 2 * PS)
        assert (old_events.qsize(), new_events.qsize()) == (0, 1)
        await asyncio.sleep(0.05)
        assert [tokens for _, tokens in (old_events.get_nowait(), old_events.get_nowait())] == [
            (None,),
            (),
        ]
        return old

    old = asyncio.run(sent())
    assert (old.num_steps, old.is_ended) == (2, True)
    assert list(live.unfinished) == [1]
