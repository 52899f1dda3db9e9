"""Trains and evaluates probes (extra `train`)."""
