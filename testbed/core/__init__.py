"""Plain values that every other package uses: specs, requests, sequences, slots."""
