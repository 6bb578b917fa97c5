"""How long tests wait."""

from __future__ import annotations

#: For a program that a test of the core or of the GPU path starts. `make test` runs these tests in the idle scheduling
#: class: while other tests keep both cores busy, for up to ten minutes, they hardly get any time.
COMPUTING_SECONDS = 1800.0
