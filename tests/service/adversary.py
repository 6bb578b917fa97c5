"""Orders on which quicksort does worst, found by McIlroy's adversary with NumPy's own sort as the oracle."""

from __future__ import annotations

import numpy as np


def anti_quicksort(count: int) -> list[int]:
    """The numbers below ``count`` in an order that sends NumPy's introsort into its fallback, the heapsort.

    The sort is run on values that are decided only while it compares them: of two undecided ones, the one that was
    compared last, which is probably the pivot, becomes the smallest number left. NumPy sorts objects and StringDType
    by the same code.
    """
    order: list[int | None] = [None] * count
    solid, candidate = 0, 0

    class Gas:
        def __init__(self, place: int) -> None:
            self.place = place

        def __lt__(self, other: Gas) -> bool:
            nonlocal solid, candidate
            mine, theirs = self.place, other.place
            if order[mine] is None and order[theirs] is None:
                frozen = mine if mine == candidate else theirs
                order[frozen], solid = solid, solid + 1
            if order[mine] is None:
                candidate = mine
            elif order[theirs] is None:
                candidate = theirs
            left, right = order[mine], order[theirs]
            return (count if left is None else left) < (count if right is None else right)

    gas = np.empty(count, dtype=object)
    gas[:] = [Gas(place) for place in range(count)]
    gas.sort()
    left = iter(range(solid, count))
    return [next(left) if value is None else value for value in order]
