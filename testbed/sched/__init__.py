"""Schedulers: who runs in the next iteration, and who is preempted."""
