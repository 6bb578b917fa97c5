"""The gRPC API: checks requests, reads and writes the stores, and never computes."""
