"""One client for any OpenAI-compatible server. Nothing but this package knows the OpenAI protocol as a caller."""
