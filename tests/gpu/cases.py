"""Every kernel with arguments, and what NumPy makes of them: at sizes that fill no block, and one block and a bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

THREADS = 128


@dataclass
class Case:
    """A launch; ``outputs`` are the positions of the arguments that are written, ``expected`` what they must hold."""

    kernel: str
    blocks: int
    arguments: list
    outputs: list[int]
    expected: list[np.ndarray]
    across: int = 1


def cases(real=np.float64):
    """One launch of each kernel, of several sizes where a block's end matters."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(real)

    def blocks(threads):
        return -(-threads // THREADS)

    made = []
    for rows, columns in ((1, 1), (37, 3), (129, 1), (140, 2)):
        A, parts = _sparse(rng, rows, 0.2, real)
        sizes = [rows, rows, columns, parts[2].size]
        x, y, beta = normal(rows, columns), normal(rows, columns), normal(rows)
        out = np.full((rows, columns), np.nan, dtype=real)
        size = blocks(rows * columns)
        made.append(Case("csr_product", size, [*sizes, *parts, x, out], [8], [A @ x]))
        expected = real(0.7) * (A @ x) + beta[:, None] * y
        made.append(Case("csr_product_plus", size, [*sizes, *parts, x, 0.7, beta, y, out.copy()], [11], [expected]))
    for rows, columns in ((5, 1), (2048, 2), (5000, 3)):
        x, y = normal(rows, columns), normal(rows, columns)
        stages = blocks(rows) // 16 + 1
        pad = np.zeros((stages * 2048 - rows, columns), dtype=real)
        products = np.concatenate([x * y, pad]).reshape(stages, 2048, columns).sum(axis=1)
        partial, out = np.full((stages, columns), np.nan, dtype=real), np.full(columns, np.nan, dtype=real)
        made.append(Case("column_dots", stages, [rows, columns, stages, x, y, partial], [5], [products], columns))
        made.append(Case("column_sums", columns, [stages, columns, products, out], [3], [products.sum(axis=0)]))
    for rows, width, n in ((3, 5, 1), (40, 33, 4)):
        F, Z = normal(rows, n), normal(width, n)
        squares = np.sum((F[:, None] - Z) ** 2, axis=2)
        for cauchy, K in ((0, np.exp(-0.6 * squares)), (1, 1 / (1 + 0.6 * squares))):
            tile = np.full((rows, width), np.nan, dtype=real)
            arguments = [rows, width, n, cauchy, 0.6, F, np.ascontiguousarray(Z.T), tile]
            made.append(Case("relate_tile", blocks(rows * width), arguments, [7], [K]))
            product = normal(rows, width)
            expected = product * -2.5 * (K * K if cauchy else K)
            arguments = [rows, width, cauchy, 2.5, K.astype(real), product]
            made.append(Case("tile_slopes", blocks(rows * width), arguments, [5], [expected]))
    made += [*_mode_cases(normal, real, 9), *_mode_cases(normal, real, 300)]
    for targets, sources, n in ((1, 1, 1), (150, 140, 2), (130, 260, 3)):
        x, y, weights = normal(targets, n), 3 * normal(sources, n), normal(sources)
        made += _pair_cases(x, y, weights, real)
    for columns, k in ((1, 1), (50, 7), (300, 129), (1000, 19)):
        values = rng.normal(size=(4, columns)).astype(np.float32)
        values[1] = np.round(values[1])
        values[2] = -1.0
        values[3, ::5] = np.nan
        nearest = np.sort(np.argsort(values, axis=1, kind="stable")[:, :k], axis=1)
        found = np.full((4, k), -1, dtype=np.int32)
        made.append(Case("smallest_columns", 4, [4, columns, k, values, found], [4], [nearest]))
    return made


def _sparse(rng, rows, density, real):
    """A random matrix, full and as index pointers, indices and data. (SciPy would take seconds under a sanitizer.)"""
    A = np.where(rng.uniform(size=(rows, rows)) < density, rng.normal(size=(rows, rows)), 0.0).astype(real)
    where, indices = np.nonzero(A)
    indptr = np.searchsorted(where, np.arange(rows + 1))
    return A, [indptr.astype(np.int32), indices.astype(np.int32), A[where, indices]]


def _mode_cases(normal, real, points):
    f = normal(points)
    omega, inverse, blocks = 0.9, 1.3, min(2, -(-points // THREADS))
    G, parts = _sparse(np.random.default_rng(1), points, min(1.0, 6 / points), real)
    gap, middle = f[:, None] - f, (f[:, None] + f) / 2
    strength = G * np.exp(-(gap**2) * inverse / 2)
    owner = (np.arange(points) // THREADS) % blocks
    for first in (0, 8):
        waves = omega * (first + np.arange(8))
        phases = np.exp(1j * f[:, None] * waves)
        by_block = np.stack([phases[owner == b].sum(axis=0) for b in range(blocks)])
        partial = np.full((blocks, 16), np.nan, dtype=real)
        yield Case("point_modes", blocks, [points, first, blocks, omega, f, partial], [5], [_pairs(by_block)])
        half = np.full(4 * points, np.nan, dtype=real)
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
        by_block = np.stack([sums[owner == b].sum(axis=0) for b in range(blocks)])
        arguments = [points, parts[2].size, first, blocks, omega, inverse, *parts, f, _pairs(both).ravel().astype(real)]
        arguments += [weights, start.copy(), partial.copy()]
        yield Case("edge_modes", blocks, arguments, [12, 13], [gradient, _pairs(by_block)])
        adjoint = start + (phases.conj() @ (waves * field)).imag
        arguments = [points, first, omega, f, weights, start.copy()]
        yield Case("adjoint_modes", size, arguments, [5], [adjoint])


def _pair_cases(x, y, weights, real):
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
    sums = np.full(expected.shape, np.nan, dtype=real)
    arguments = [len(x), len(y), x.shape[1], len(boxes[0]), len(boxes[1]), decay, farthest]
    arguments += [x, y, weights, *boxes, sums]
    yield Case("pair_sums", len(boxes[0]), arguments, [12], [expected])


def _pairs(values):
    """Complex numbers as real and imaginary parts side by side."""
    return np.stack([values.real, values.imag], axis=-1).reshape(len(values), -1)


def run(case, kernel, real):
    """Call an emulated kernel on copies of the arguments; what it wrote."""
    arguments = []
    for argument, declared in zip(case.arguments, kernel.arguments, strict=True):
        if declared.pointer:
            arguments.append(argument.copy())
        else:
            arguments.append(np.int32(argument) if declared.type == "int" else np.dtype(real).type(argument))
    kernel((case.blocks, case.across), (THREADS,), tuple(arguments))
    return [arguments[position] for position in case.outputs]
