"""Views of results in a notebook, and ways to save them: pages, run folders, traces."""
