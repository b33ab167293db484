"""Replays the logs of real servers, and reports the errors of the simulation."""
