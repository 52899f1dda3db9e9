"""HTTP and nothing else: a router per resource, schemas, problems, keys, metrics."""
