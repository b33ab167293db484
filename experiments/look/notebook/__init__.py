"""How a notebook shows and saves a result: pages, run folders, traces."""
