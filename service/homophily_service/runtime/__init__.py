"""What every process of the service has: settings, logs, traces, child processes, devices."""
