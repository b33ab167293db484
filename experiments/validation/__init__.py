"""Replays what real servers logged, and says how far off the simulation is."""
