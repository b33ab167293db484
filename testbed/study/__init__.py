"""Questions about many runs: capacity, the knee of a curve, seeds, sensitivity, trends."""
