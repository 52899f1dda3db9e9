"""Work that takes longer than a request: durable, resumed after a crash, shared between workers."""
