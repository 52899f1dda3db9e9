"""Models run in this process: the embedder and the batcher that feeds it."""
