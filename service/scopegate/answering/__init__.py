"""Answers made from evidence, and from nothing else."""
