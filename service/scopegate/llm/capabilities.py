"""What an LLM's server can do, found out by tiny requests."""

from __future__ import annotations

# What it is asked; its own words, so that a server that is being found out can be told from one that is at work.
GREETING = "Say hello to the gatekeeper."
