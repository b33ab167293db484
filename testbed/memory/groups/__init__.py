"""Memory of models with several KV groups, in pages of one pool."""
