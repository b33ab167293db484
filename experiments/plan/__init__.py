"""The cheapest deployment that keeps an SLO: `testbed plan`."""
