"""Reading requests: bodies, JSON, parameters."""
