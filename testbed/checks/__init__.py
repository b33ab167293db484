"""Tests of a plug-in by `testbed check`: the contract, and fast ways against plain ones."""
