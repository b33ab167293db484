"""Readers of what others measured, and of their models: each gives our own format and says what is
not in it.
"""
