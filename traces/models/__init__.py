"""Fitted length models as JSON; README.md describes how they were fitted."""
