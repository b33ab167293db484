"""Modules that run inside the user's vLLM, with its packages and without this project's."""
