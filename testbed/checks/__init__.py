"""What `testbed check` tests of a plug-in: the contract, and fast ways against plain ones."""
