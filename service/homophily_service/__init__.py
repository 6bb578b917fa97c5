"""The gRPC service around the :mod:`homophily` core: everything that touches the outside world lives here."""
