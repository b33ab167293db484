"""The installed vLLM's scheduler compared with ours, iteration by iteration."""
