"""Finished runs side by side, simulated or on a GPU: what `testbed compare` prints, writes and draws."""
