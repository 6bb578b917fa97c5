"""What the service and its clients agree on. Everything else follows from here; nothing here computes."""
