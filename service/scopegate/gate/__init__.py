"""Judgements whether a question may be answered."""
