"""Pages, charts and tables that show finished runs."""
