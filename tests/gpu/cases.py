"""Every kernel with arguments, and what NumPy makes of them: at sizes that fill no block, and one block and a bit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from homophily.device.kernels import source
from homophily.relationship.functions import RELATIONSHIPS
from homophily.solve.line_search import Point, next_step

THREADS = 128
SEARCH = re.findall(r"real (\w+);", source("search").partition("struct Search {")[2].partition("};")[0])
SEARCHING, ASKING, STOPPED, FINISHED = range(4)


@dataclass
class Case:
    """A launch; ``outputs`` are the positions of the arguments that are written, ``expected`` what they must hold."""

    kernel: str
    blocks: int
    arguments: list
    outputs: list[int]
    expected: list[np.ndarray]
    across: int = 1


def cases():
    """One launch of each kernel, of several sizes where a block's end matters."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape)

    def blocks(threads):
        return -(-threads // THREADS)

    made = []
    for rows, columns, lanes in ((1, 1, 1), (37, 3, 8), (129, 1, 1), (140, 2, 2), (33, 1, 32)):
        A, parts = _sparse(rng, rows, 0.2)
        sizes = [rows, rows, columns, lanes, parts[2].size]
        x, y, beta = normal(rows, columns), normal(rows, columns), normal(rows)
        out = np.full((rows, columns), np.nan)
        size = blocks(rows * columns * lanes)
        made.append(Case("csr_product", size, [*sizes, *parts, x, out], [9], [A @ x]))
        expected = 0.7 * (A @ x) + beta[:, None] * y
        made.append(Case("csr_product_plus", size, [*sizes, *parts, x, 0.7, beta, y, out.copy()], [12], [expected]))
    for rows, columns in ((5, 1), (512, 2), (5000, 3)):
        x, y = normal(rows, columns), normal(rows, columns)
        stages = blocks(rows) // 4 + 1
        pad = np.zeros((stages * 512 - rows, columns))
        products = np.concatenate([x * y, pad]).reshape(stages, 512, columns).sum(axis=1)
        partial, out = np.full((stages, columns), np.nan), np.full(columns, np.nan)
        made.append(Case("column_dots", stages, [rows, columns, stages, x, y, partial], [5], [products], columns))
        made.append(Case("column_sums", columns, [stages, columns, products, out], [3], [products.sum(axis=0)]))
    for rows, width, n in ((3, 5, 1), (40, 33, 4)):
        F, Z = normal(rows, n), normal(width, n)
        squares = np.sum((F[:, None] - Z) ** 2, axis=2)
        for function in RELATIONSHIPS.values():
            K = function.value(np, 0.6 * squares)
            tile = np.full((rows, width), np.nan)
            arguments = [rows, width, n, function.id, 0.6, F, np.ascontiguousarray(Z.T), tile]
            made.append(Case("relate_tile", blocks(rows * width), arguments, [7], [K]))
            product = normal(rows, width)
            expected = product * 2.5 * function.slope(K)
            arguments = [rows, width, function.id, 2.5, K, product]
            made.append(Case("tile_slopes", blocks(rows * width), arguments, [5], [expected]))
    for points, n in ((5, 1), (40, 3)):
        made += _masked_cases(normal, rng, points, n)
    for points, lanes in ((9, 1), (300, 1), (300, 8)):
        made += _mode_cases(normal, points, lanes)
    for targets, sources, n in ((1, 1, 1), (150, 140, 2), (130, 260, 3)):
        x, y, weights = normal(targets, n), 3 * normal(sources, n), normal(sources)
        made += _pair_cases(x, y, weights)
    for rows, columns, dimensions in ((1, 1, 1), (5, 60, 3)):
        x, y, scores = normal(rows, dimensions), normal(columns, dimensions), rng.random((rows, columns), np.float32)
        distances = np.sqrt(np.sum((x[:, None] - y) ** 2, axis=2))
        for limit, first in ((np.inf, 0), (0.5, columns // 3)):
            limits = np.full(rows, limit)
            sizes = [rows, columns, first, columns - first, dimensions]
            expected = np.where(scores > limit, 3e38, distances).astype(np.float32)
            expected[:, :first] = scores[:, :first]
            arguments = [*sizes, x, y[first:], limits, scores.copy()]
            made.append(Case("distances_below", blocks(rows * (columns - first)), arguments, [8], [expected]))
    for columns, k in ((1, 1), (50, 7), (300, 129), (1000, 19)):
        values = rng.normal(size=(4, columns)).astype(np.float32)
        values[1] = np.round(values[1])
        values[2] = -1.0
        values[3, ::5] = np.nan
        nearest = np.sort(np.argsort(values, axis=1, kind="stable")[:, :k], axis=1)
        found = np.full((4, k), -1, dtype=np.int32)
        made.append(Case("smallest_columns", 4, [4, columns, k, values, found], [4], [nearest]))
    made += [*_preconditioner_cases(normal, rng), *_decision_cases(), *_vector_cases(normal)]
    return made


def _sparse(rng, rows, density):
    """A random matrix, full and as index pointers, indices and data. (SciPy would take seconds under a sanitizer.)"""
    A = np.where(rng.uniform(size=(rows, rows)) < density, rng.normal(size=(rows, rows)), 0.0)
    where, indices = np.nonzero(A)
    indptr = np.searchsorted(where, np.arange(rows + 1))
    return A, [indptr.astype(np.int32), indices.astype(np.int32), A[where, indices]]


def _masked_cases(normal, rng, points, n):
    G, graph = _sparse(rng, points, 0.2)
    mask = rng.random((points, points)) < 0.3
    np.fill_diagonal(mask, True)
    rows, columns = (part.astype(np.int32) for part in np.nonzero(mask))
    indptr, pairs, blocks = (
        np.searchsorted(rows, np.arange(points + 1)).astype(np.int32),
        rows.size,
        -(-rows.size // 128),
    )
    F, delta = normal(points, n), normal(pairs)
    empty = np.full(pairs, np.nan)
    for function in RELATIONSHIPS.values():
        K = np.where(mask, function.value(np, 0.6 * np.sum((F[:, None] - F) ** 2, axis=2)), 0.0)
        values = K[rows, columns]
        arguments = [pairs, points, n, function.id, 0.6, rows, columns, F, empty]
        yield Case("masked_values", blocks, arguments, [8], [values])
        half = values * delta - (K @ G.T)[rows, columns]
        expected = [values * half, 2.4 * half * function.slope(values)]
        sizes = [pairs, points, graph[2].size, function.id, 2.4]
        arguments = [*sizes, indptr, rows, columns, *graph, delta, values, empty.copy(), empty.copy()]
        yield Case("masked_pulls", blocks, arguments, [13, 14], expected)


def _preconditioner_cases(normal, rng):
    for rows, columns, lanes in ((1, 1, 1), (37, 3, 4), (140, 1, 16)):
        A, parts = _sparse(rng, rows, 0.2)
        size, shared, entries = -(-rows * columns // THREADS), -(-rows * columns * lanes // THREADS), parts[2].size
        root, shifted = rng.uniform(0.5, 2.0, (2, rows))
        x, scaled, residual, step, out = normal(5, rows, columns)
        empty = np.full((rows, columns), np.nan)
        for go in np.array([[0], [1]]):
            done = bool(go[0])
            expected = A @ x if done else empty
            arguments = [rows, rows, columns, lanes, entries, go, *parts, x, empty]
            yield Case("csr_product_if", shared, arguments, [10], [expected])
            begun = root[:, None] * x, root[:, None] * x / 1.7, root[:, None] ** 2 * x / 1.7
            arguments = [rows, columns, go, 1.7, root, x, empty, empty, empty, empty]
            expected = [*begun, begun[2]] if done else [empty] * 4
            yield Case("chebyshev_begin", size, arguments, [6, 7, 8, 9], expected)
            left = residual - root[:, None] * (shifted[:, None] * scaled + 0.6 * (A @ x))
            ahead = 0.3 * step + 0.8 * left
            following = root[:, None] * ahead
            arguments = [rows, columns, lanes, entries, go, *parts, 0.6, 0.3, 0.8, root, shifted]
            arguments += [x, scaled, residual, step, empty, out]
            expected = [left, ahead, following, out + following] if done else [residual, step, empty, out]
            yield Case("chebyshev_step", shared, arguments, [15, 16, 17, 18], expected)


#: A search after its first trial, which was lower and steep: slope -2 at x, -1.2 there.
BEGUN = {
    "step": 1.5, "energy": 5.0, "slope": -2.0, "square": 4.0, "descent": 2.0, "norm": 0.5, "iteration": 3,
    "evaluations": 7, "trials": 1, "low_step": 0.5, "low_energy": 4.2, "low_slope": -1.2, "low_square": 3.0,
    "high_step": -1,
}  # fmt: skip


def _row(**numbers):
    return np.array([numbers.get(name, 0.0) for name in SEARCH])


def _decision_cases():
    def one(number):
        return np.array([number])

    empty, slope = _row(**dict.fromkeys(SEARCH, np.nan)), BEGUN["slope"]
    for square, scale, limits, status in (
        (4.0, 8.0, (5, 0.1), SEARCHING),
        (4.0, 0.0, (5, 1.0), FINISHED),
        (4.0, 8.0, (0, 0.1), STOPPED),
        (0.0, 0.0, (5, 0.0), FINISHED),
    ):
        for largest in (0.5, 4.0):
            numbers = {"energy": 3.0, "slope": -square / 2, "square": square, "descent": square / 2}
            numbers |= {"norm": 2.0 / (scale or 2.0) if square else 0.0, "step": min(1.0, 1.0 / largest)}
            numbers |= {"low_energy": 3.0, "low_slope": -square / 2, "low_square": square, "high_step": -1}
            expected = _row(**numbers, status=status, evaluations=1)
            arguments = [*limits, *map(one, (3.0, square, square / 2, largest, scale)), empty]
            yield Case("search_begin", 1, arguments, [7], [expected])

    low = Point(0.5, 4.2, -1.2, None)
    counted = {"evaluations": 8, "trials": 2}
    as_low = {"low_step": 1.5, "low_energy": 3.0, "low_square": 2.0}
    taken = {"moved": 1.5, "energy": 3.0, "square": 2.0, "norm": 0.5 * np.sqrt(2.0 / 4.0), "iteration": 4, "lower": 1}
    flat = {**counted, **as_low, **taken, "accepted": 1}
    earlier = {"moved": 0.5, "energy": 4.2, "square": 3.0, "norm": 0.5 * np.sqrt(3.0 / 4.0), "iteration": 4}
    high = Point(1.5, 6.0, 3.0, None)
    as_high = {"high_step": 1.5, "high_energy": 6.0, "high_slope": 3.0}
    within = next_step(low, high, slope)
    decisions = [
        # Nothing changes where the search has ended, or waits for the host.
        ({"status": FINISHED, "accepted": 1, "lower": 1, "turning": 1}, (3.0, 0.1), {"status": FINISHED}),
        ({"status": ASKING}, (3.0, 0.1), {"status": ASKING}),
        ({}, (np.nan, 0.1), {"status": ASKING}),
        # Too high; lower and steep; lower and rising; lower and flat.
        ({}, (6.0, 3.0), {**counted, **as_high, "step": within}),
        ({}, (3.0, -0.9), {**counted, **as_low, "low_slope": -0.9, "lower": 1, "step": 1.5 / (1 - 0.45)}),
        ({}, (3.0, -3.0), {**counted, **as_low, "low_slope": -3.0, "lower": 1, "step": 15.0}),
        (
            {},
            (3.0, 0.9),
            {
                **counted, **as_low, "low_slope": 0.9, "lower": 1, "high_step": 0.5, "high_energy": 4.2,
                "high_slope": -1.2, "step": next_step(Point(1.5, 3.0, 0.9, None), low, slope),
            },
        ),
        ({}, (3.0, -0.5), {**flat, "low_slope": -0.5, "slope": -0.5, "turning": 1}),
        # The last trial, of which the one before is the lowest, or itself, or none is.
        (
            {"trials": 19},
            (6.0, 3.0),
            {**counted, **earlier, **as_high, "trials": 20, "slope": -1.2, "accepted": 2, "turning": 1, "step": within},
        ),
        (
            {"trials": 19},
            (3.0, -0.9),
            {
                **flat, "low_slope": -0.9, "trials": 20, "slope": -0.9, "turning": 1, "step": 1.5 / (1 - 0.45),
            },
        ),
        (
            {"trials": 19, "low_step": 0.0, "low_energy": 5.0, "low_slope": -2.0},
            (6.0, 3.0),
            {
                **counted, **as_high, "trials": 20, "status": FINISHED,
                "step": next_step(Point(0.0, 5.0, -2.0, None), high, slope),
            },
        ),
        # The last step, and one that reaches the tolerance.
        ({"iteration": 8}, (3.0, 0.1), {**flat, "low_slope": 0.1, "slope": 0.1, "iteration": 9, "status": STOPPED}),
        ({"norm": 0.1}, (3.0, 0.1), {**flat, "low_slope": 0.1, "slope": 0.1, "norm": 0.005**0.5, "status": FINISHED}),
    ]  # fmt: skip
    for change, (energy, found_slope), after in decisions:
        before = {**BEGUN, **change}
        expected = {**before, "accepted": 0, "lower": 0, "turning": 0, **after}
        arguments = [20, 9, 1e-4, 0.3, 0.09, _row(**before), *map(one, (energy, found_slope, 2.0)), empty]
        yield Case("search_decide", 1, arguments, [9], [_row(**expected)])

    now = {**BEGUN, "accepted": 1, "moved": 0.5, "slope": 0.4, "high_step": 2.0, "high_energy": 6.0, "high_slope": 3.0}
    for descent, cross, beta in ((1.5, 0.5, 0.5), (1.5, 3.0, 0.0), (0.1, -2.0, 0.0)):
        new = {"beta": beta, "slope": beta * 0.4 - descent, "descent": descent, "step": 0.5, "trials": 0}
        new |= {"low_step": 0, "low_energy": 5.0, "low_slope": new["slope"], "low_square": 4.0, "high_step": -1}
        new |= {"high_energy": 0, "high_slope": 0, "turning": 1}
        for turning, expected in ((0, now), (1, {**now, **new})):
            row = _row(**{**now, "turning": turning})
            arguments = [one(descent), one(cross), row]
            yield Case("search_turn", 1, arguments, [2], [_row(**{**expected, "turning": turning})])


def _vector_cases(normal):
    for size in (1, 130):
        x, direction, gradient, kept, preconditioned, before = normal(6, size)
        blocks, trial = -(-size // THREADS), np.full(size, np.nan)
        row = _row(**BEGUN)
        yield Case("search_trial", blocks, [size, row, x, direction, trial], [4], [x + 1.5 * direction])
        for lower, accepted, expected in (
            (0, 0, [gradient, kept]),
            (1, 0, [gradient, gradient]),
            (1, 1, [gradient, kept]),
            (0, 2, [kept, kept]),
        ):
            row = _row(**{**BEGUN, "lower": lower, "accepted": accepted})
            yield Case("search_keep", blocks, [size, row, gradient, kept], [2, 3], expected)
        for accepted, turning in ((0, 0), (1, 0), (2, 1)):
            row = _row(**{**BEGUN, "accepted": accepted, "turning": turning, "moved": 0.5, "beta": 0.7})
            moved = [x + 0.5 * direction, gradient] if accepted else [x, before]
            turned = 0.7 * direction - preconditioned if turning else direction
            arguments = [size, row, gradient, preconditioned, x, before, direction]
            yield Case("search_move", blocks, arguments, [4, 5, 6], [*moved, turned])


def _mode_cases(normal, points, lanes):
    f = normal(points)
    omega, inverse, blocks = 0.9, 1.3, min(2, -(-points // THREADS))
    G, parts = _sparse(np.random.default_rng(1), points, min(1.0, 6 / points))
    gap, middle = f[:, None] - f, (f[:, None] + f) / 2
    strength = G * np.exp(-(gap**2) * inverse / 2)
    owner = (np.arange(points) // THREADS) % blocks
    for first in (0, 8):
        waves = omega * (first + np.arange(8))
        phases = np.exp(1j * f[:, None] * waves)
        by_block = np.stack([phases[owner == b].sum(axis=0) for b in range(blocks)])
        partial = np.full((blocks, 16), np.nan)
        yield Case("point_modes", blocks, [points, first, blocks, omega, f, partial], [5], [_pairs(by_block)])
        half = np.full(4 * points, np.nan)
        both = np.stack([np.exp(0.5j * omega * f), np.exp(0.5j * first * omega * f)], axis=1)
        size = -(-points // THREADS)
        yield Case("half_phases", size, [points, first, omega, f, half], [4], [_pairs(both).ravel()])
        weights = normal(16)
        field = weights[::2] + 1j * weights[1::2]
        at_edges = np.exp(1j * middle[:, :, None] * waves)
        value = (at_edges @ field).real
        slope = (at_edges @ (1j * waves * field)).real
        start = normal(points)
        gradient = start + np.sum(strength * (slope - 2 * gap * inverse * value), axis=1)
        sums = np.einsum("jk,jkq->jq", strength, at_edges)
        edge_blocks = min(3, -(-points * lanes // THREADS))
        owner_of_row = (np.arange(points) // (THREADS // lanes)) % edge_blocks
        by_block = np.stack([sums[owner_of_row == b].sum(axis=0) for b in range(edge_blocks)])
        partial = np.full((edge_blocks, 16), np.nan)
        arguments = [
            points,
            parts[2].size,
            lanes,
            first,
            edge_blocks,
            omega,
            inverse,
            *parts,
            f,
            _pairs(both).ravel(),
        ]
        arguments += [weights, start.copy(), partial.copy()]
        yield Case("edge_modes", edge_blocks, arguments, [13, 14], [gradient, _pairs(by_block)])
        adjoint = start + (phases.conj() @ (waves * field)).imag
        arguments = [points, first, omega, f, weights, start.copy()]
        yield Case("adjoint_modes", size, arguments, [5], [adjoint])


def _pair_cases(x, y, weights):
    decay, farthest = 0.8, 40.0
    boxes = []
    for places in (x, y):
        tiles = [places[start : start + THREADS] for start in range(0, len(places), THREADS)]
        expected = np.stack([np.concatenate([tile.min(axis=0), tile.max(axis=0)]) for tile in tiles])
        boxes.append(expected)
        empty = np.full_like(expected, np.nan)
        n = places.shape[1]
        size = -(-len(tiles) * n // THREADS)
        yield Case("tile_boxes", size, [len(places), n, len(tiles), places, empty], [4], [expected])
    gaps = x[:, None] - y
    parts = weights * np.exp(-decay * np.sum(gaps**2, axis=2))
    expected = np.column_stack([parts.sum(axis=1), -2 * decay * np.einsum("ts,tsd->td", parts, gaps)])
    sums = np.full(expected.shape, np.nan)
    arguments = [len(x), len(y), x.shape[1], len(boxes[0]), len(boxes[1]), decay, farthest]
    arguments += [x, y, weights, *boxes, sums]
    yield Case("pair_sums", len(boxes[0]), arguments, [12], [expected])


def _pairs(values):
    """Complex numbers as real and imaginary parts side by side."""
    return np.stack([values.real, values.imag], axis=-1).reshape(len(values), -1)


def run(case, kernel):
    """Call an emulated kernel on copies of the arguments; what it wrote."""
    arguments = []
    for argument, declared in zip(case.arguments, kernel.arguments, strict=True):
        kind = kernel.types[declared.type]
        arguments.append(argument.astype(kind) if declared.pointer else kind(argument))
    kernel((case.blocks, case.across), (THREADS,), tuple(arguments))
    return [arguments[position] for position in case.outputs]
