"""A clock of the GPU engine on which a host takes time to launch and to read, and a GPU beside it
to compute; what is computed is real.
"""

from typing import NamedTuple

from testbed.core.request import PS
from testbed.engine.wall_clock import StepClock
from testbed.kernels.engine.runner import Runner


class HostAndGpu(StepClock):
    """Times in ps. The GPU has the first of a launch after first_ps and all of it after
    whole_ps(has_prompts), when the host goes on; it computes in order, each launch for
    computing_ps(decodes, stored, prompt_tokens), if the decodes attend to `stored` tokens. The
    host reads results for reading_ps when they are there.
    """

    def __init__(self, monkeypatch, first_ps, whole_ps, reading_ps, computing_ps):
        super().__init__(0.0)
        self.first_ps, self.whole_ps, self.reading_ps = first_ps, whole_ps, reading_ps
        self.computing_ps = computing_ps
        launch, sample = Runner.launch, Runner.sample
        monkeypatch.setattr(
            Runner, "launch", lambda runner, plan: self.launch(launch, runner, plan)
        )
        monkeypatch.setattr(Runner, "wait", lambda runner, launched: self.wait(launched))
        monkeypatch.setattr(Runner, "sample", lambda runner, done: self.read(sample, runner, done))

    def restart(self):
        super().restart()
        self.gpu_free_ps = 0

    def launch(self, launch, runner, plan):
        launched = launch(runner, plan)
        parts, num_prompts = launched.batch.parts, launched.batch.num_prompts
        tokens = sum(part.new for part in parts[:num_prompts])
        decodes = parts[num_prompts:]
        stored = sum(part.context_len for part in decodes)
        computing_ps = self.computing_ps(len(decodes), stored, tokens)
        begin_ps = max(self.gpu_free_ps, self._now_ps + self.first_ps)
        self._now_ps += self.whole_ps(bool(num_prompts))
        self.gpu_free_ps = max(begin_ps + computing_ps, self._now_ps)
        return launched._replace(time=OnGpu(computing_ps / PS, self.gpu_free_ps))

    def wait(self, launched):
        self._now_ps = max(self._now_ps, launched.time.end_ps)

    def read(self, sample, runner, launched):
        self._now_ps += self.reading_ps
        return sample(runner, launched)


class OnGpu(NamedTuple):
    """The duration of a launch on the GPU, and its end."""

    seconds: float
    end_ps: int
