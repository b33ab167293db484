"""An installed vLLM: its iterations measured into a cost profile, and its requests logged."""
