"""Logged iterations of a vLLM whose every time is known: a host that launches, a GPU that computes.

The host plans an iteration when it has launched the one before, and with two under way when the
results of the older are in; the GPU computes one after the other.
"""

import csv

SIZES = [1, 2, 4, 8, 16, 32, 64]
LARGEST = SIZES[-1]
PER_CONTEXT, PER_TOKEN, PER_PAIR = 40e-6, 0.02, 0.5e-6  # ms
DECODE_LAUNCH = (1.5, 2.0)  # ms: the first, the whole
COLUMNS = (
    *("schedule_start_s", "result_s", "prompts", "prompt_tokens"),
    *("decodes", "decode_context", "chunks"),
)


def decode_ms(num_seqs):
    """A decode iteration that reads nothing."""
    return 6 + 0.02 * num_seqs


def prompt_launch_ms(num_tokens):
    return 9.0 if num_tokens <= LARGEST else 25.0


def launch(prompts, decodes):
    """The first and the whole."""
    if not (prompts or decodes):
        return 0.0, 0.0
    if not prompts:
        return DECODE_LAUNCH
    return DECODE_LAUNCH[0], prompt_launch_ms(decodes + sum(new for _, new in prompts))


def computing_ms(prompts, decodes, context):
    if not (prompts or decodes):
        return 0.0
    if not prompts:
        return PER_CONTEXT * context + decode_ms(decodes)
    num_tokens = decodes + sum(new for _, new in prompts)
    pairs = sum(new * (past + (new + 1) / 2) for past, new in prompts)
    linear = 5 + PER_TOKEN * num_tokens if num_tokens > LARGEST else decode_ms(num_tokens)
    return PER_CONTEXT * context + linear + PER_PAIR * pairs


class Planted:
    """Iterations in a row, each as its prompts (stored, new tokens), decodes and their context."""

    def __init__(self, per_request_ms=0.0, handing_out_ms=0.0, unseen_ms=0.0):
        """per_request_ms: what launches of prompts take more for each request but one.
        handing_out_ms: a decode's result before the next plan. unseen_ms: what a number of tokens
        beyond the graphs takes more the first time.
        """
        self.rows, self.now, self.per_request_ms = [], 0.0, per_request_ms
        self.handing_out_ms = handing_out_ms
        self.unseen_ms, self.seen = unseen_ms, set()
        self.slowness = 1.0  # of the host's launches of prompts

    def run(self, iterations):
        """Plan and compute them when nothing is under way; two are under way at most."""
        planned = self.now = self.now + 50.0
        ends, reads = [], []
        for number, iteration in enumerate(iterations):
            if number > 1:
                planned = reads[number - 2] + self.handing_out_ms * iterations[number - 2][1]
            prompts, decodes = iteration[:2]
            first, whole = launch(prompts, decodes)
            if prompts:
                whole += self.per_request_ms * (len(prompts) + decodes - 1)
                whole *= self.slowness
                whole += self.first_time_ms(decodes + sum(new for _, new in prompts))
            launched = planned + whole
            if number:
                reads.append(max(ends[-1], launched))
            begun = max(ends[-1] if ends else 0.0, planned + first)
            ends.append(max(begun + computing_ms(*iteration), launched))
            self.rows.append([planned, *iteration])
            planned = launched
        reads.append(ends[-1])
        for row, read in zip(self.rows[-len(reads) :], reads, strict=True):
            row.append(read)
        self.now = reads[-1]

    def first_time_ms(self, num_tokens):
        is_seen = num_tokens <= LARGEST or num_tokens in self.seen
        self.seen.add(num_tokens)
        return 0.0 if is_seen else self.unseen_ms

    def write(self, folder):
        with (folder / "steps.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(COLUMNS)
            for planned, prompts, decodes, context, result in self.rows:
                tokens = sum(new for _, new in prompts)
                chunks = ";".join(f"{past}+{new}" for past, new in prompts)
                times = planned / 1e3, result / 1e3
                out.writerow([*times, len(prompts), tokens, decodes, context, chunks])


def sweeps(handing_out_ms=0.0):
    """Decodes at two contexts, lone prompts, and prompts among decodes."""
    planted = apart(handing_out_ms=handing_out_ms)
    add_prompts_among_decodes(planted)
    return planted


def add_prompts_among_decodes(planted, new=(8, 16, 700, 2000)):
    """One prompt of each of these tokens among 1, 8 and 32 decodes."""
    for count in (1, 8, 32):
        for new_tokens in new:
            decodes = ((), count, 100 * count)
            planted.run([decodes] * 3 + [(((0, new_tokens),), count, 100 * count), *[decodes] * 4])


def apart(per_request_ms=0.0, handing_out_ms=0.0):
    """Decodes and lone prompts; nothing of both."""
    planted = Planted(per_request_ms, handing_out_ms)
    add_apart(planted)
    return planted


def add_apart(planted):
    for count in SIZES:
        for mean in (100, 1000):
            planted.run([((), count, count * (mean + step)) for step in range(12)])
    for new in (16, 48, 200, 400, 2000, 4000, 6000, 8000):
        for _ in range(3):
            planted.run([(((0, new),), 0, 0), ((), 0, 0)])
    for past in (1000, 4000):
        planted.run([(((past, 4000),), 0, 0), ((), 0, 0)])


def add_prompts_behind_prompts(planted, before, num_prompts, times):
    """So often so many prompts of 200 tokens behind a lone one of `before` tokens."""
    for _ in range(times):
        planted.run([(((0, before),), 0, 0), (((0, 200),) * num_prompts, 0, 0), ((), 0, 0)])
