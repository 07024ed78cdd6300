"""Running the service: server, processes, logging, the local MongoDB."""
