"""What a notebook shows of a result: pages, a saved run folder, a trace."""
