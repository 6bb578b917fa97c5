"""Measurements of the core, run as ``python -m benchmarks NAME``; README.md says what each one shows."""

import os

# Read when gRPC is imported: the transport that takes the least of the clients' time, as they share the cores with what
# is measured.
LIGHT_TRANSPORT = "GRPC_EXPERIMENTS"
os.environ.setdefault(LIGHT_TRANSPORT, "-event_engine_client")
