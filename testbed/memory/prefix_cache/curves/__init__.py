"""Hit rates of a trace over cache sizes: the LRU order in one pass, and the bound of all orders."""
