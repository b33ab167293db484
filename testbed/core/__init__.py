"""Plain values that every other package speaks in: specs, requests, sequences, slots."""
