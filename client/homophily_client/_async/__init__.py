"""The client's calls. The blocking client is generated from these modules by client/generate.py."""
