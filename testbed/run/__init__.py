"""Makes a run from a configuration: its parts, workload, cost model, result and identity."""
