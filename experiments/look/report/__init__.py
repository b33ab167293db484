"""The parts of the page that `testbed report` writes: a reproduction, a folder of runs, one run."""
