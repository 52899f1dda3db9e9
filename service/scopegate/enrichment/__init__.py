"""Automatic knowledge enrichment: an LLM's own knowledge as facts with a confidence (Learn to Refuse, section 3.3)."""
