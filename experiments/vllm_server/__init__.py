"""vLLM's server command: its options, the memory of its server, and the same server here."""
