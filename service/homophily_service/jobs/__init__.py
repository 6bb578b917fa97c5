"""Jobs: the checks before they are queued, without the core, and the code that the computing process runs."""
