"""Pairs of a run on a GPU and its simulation, from the same config: same requests, same
policies.
"""
