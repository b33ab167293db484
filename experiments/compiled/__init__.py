"""Compiles the simulator with mypyc. Nothing here imports it: a build that is refused must be able to be made anew."""
