"""Measurements of the core, run as ``python -m benchmarks NAME``; README.md says what each one shows."""
