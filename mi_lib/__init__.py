"""Pairwise mutual information in masked discrete sequence models: probe it, predict it, decode with it."""

__version__ = "0.1.0"
