"""The ELOQ generator: questions that a document seems to answer and does not, and others that it does."""
