"""What jobs do: checks before they are queued, without the core, and what the computing process runs."""
