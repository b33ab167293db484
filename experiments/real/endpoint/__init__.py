"""A running server behind OpenAI's API: a workload sent to it, and the client's log of it."""
