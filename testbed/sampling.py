"""How the requests of one run sample: plain, in parallel and by beam search side by side (section 4.4, mixed)."""

import re
from typing import NamedTuple

from testbed.core.errors import InputError

PART = re.compile(r"(?P<beam>beam)?(?P<num_seqs>[1-9]\d{0,3}):(?P<weight>\d+(\.\d*)?|\.\d+)")
HINT = "give N:WEIGHT and beamN:WEIGHT with commas between, such as 1:0.5,4:0.3,beam4:0.2"


class Share(NamedTuple):
    """Requests of num_seqs sequences, a beam or parallel samples, that are `weight` of all weights together."""

    num_seqs: int
    beam: bool
    weight: float


def parse_mix(text: str) -> list[Share]:
    shares = []
    for part in text.split(","):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise InputError(f"workload.mix={text}: {part.strip()!r} is no share of the requests ({HINT})")
        shares.append(Share(int(match["num_seqs"]), match["beam"] is not None, float(match["weight"])))
    if not sum(share.weight for share in shares) > 0:
        raise InputError(f"workload.mix={text}: no weight is above 0 ({HINT})")
    return shares
