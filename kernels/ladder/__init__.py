"""Decode attention in the order in which one understands it: five steps, each checked and timed on the same batches."""
