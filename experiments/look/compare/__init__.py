"""The comparison of finished runs, simulated or on a GPU, that `testbed compare` prints, writes and
draws.
"""
