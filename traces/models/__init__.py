"""Fitted length models as JSON; `python -m traces.fit` makes them."""
