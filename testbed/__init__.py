"""A discrete-event simulator of KV-cache memory management in LLM serving."""
