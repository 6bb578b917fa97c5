"""Where jobs are computed: a supervisor that holds the lease, and a warm child process that does the work."""
