"""Request lengths for the testbed: readers of public trace files and fitted length models."""
