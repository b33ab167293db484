"""Schedulers: the requests of the next iteration, and those that are preempted."""
