"""scopegate decides, before an LLM answers, whether a question can be answered from the knowledge at hand."""

__version__ = "0.1.0"
