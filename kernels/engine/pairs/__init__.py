"""Runs on a GPU whose simulated counterparts are made from the same configs: same requests, same rules."""
