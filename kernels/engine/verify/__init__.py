"""Is the engine right? Its logits against an independent implementation, under every kind of memory policy."""
