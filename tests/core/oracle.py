"""The regulariser in its most naive form, and small graphs to try it on: slow, and right at a glance."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, diags_array

FUNCTIONS = {"gaussian": lambda x: np.exp(-x), "cauchy": lambda x: 1 / (1 + x)}


def relationship_energy(G, F, sigma_f, relationship="gaussian"):
    """``Σ_i Σ_jk K_ij G_jk K_ik``, one triple at a time."""
    G, u, function = G.toarray(), len(F), FUNCTIONS[relationship]
    K = [[function(np.sum((F[i] - F[j]) ** 2) / sigma_f**2) for j in range(u)] for i in range(u)]
    return sum(K[i][j] * G[j, k] * K[i][k] for i in range(u) for j in range(u) for k in range(u))


def masked_energy(W, degrees, mask, F, sigma_f, relationship="gaussian"):
    """``½ Σ_i Σ_jk W_jk (K_ij/√d_j − K_ik/√d_k)² g_ij g_ik``, one triple at a time; without degrees, d ≡ 1."""
    W, g, u = W.toarray(), mask.toarray() != 0, len(F)
    root = np.ones(u) if degrees is None else np.sqrt(degrees)
    energy = 0.0
    for i in range(u):
        for j in range(u):
            for k in range(u):
                if g[i, j] and g[i, k] and W[j, k]:
                    K_ij, K_ik = (FUNCTIONS[relationship](np.sum((F[i] - F[x]) ** 2) / sigma_f**2) for x in (j, k))
                    energy += W[j, k] * (K_ij / root[j] - K_ik / root[k]) ** 2 / 2
    return energy


def central_differences(energy, F, step=1e-5):
    """The gradient of ``energy`` (a function of F alone) by central differences of fourth order."""
    gradient = np.zeros_like(F)
    for index in np.ndindex(*F.shape):
        values = []
        for shift in (-2, -1, 1, 2):
            moved = F.copy()
            moved[index] += shift * step
            values.append(energy(moved))
        gradient[index] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    return gradient


def relative_error(value, reference):
    """Largest difference as a share of the reference's largest magnitude (absolute where the reference is 0)."""
    scale = np.max(np.abs(reference))
    return np.max(np.abs(np.asarray(value) - reference)) / (scale if scale > 0 else 1.0)


def knn_weights(u, k=4, *, isolated=0, parts=1, seed=0):
    """A symmetric k-nearest-neighbour graph on random points in 3-D, in ``parts`` components, the last points alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(u, 3)) + 100 * (np.arange(u) % parts)[:, None]
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    np.fill_diagonal(distances, np.inf)
    W = np.zeros((u, u))
    for i, row in enumerate(distances):
        nearest = np.argsort(row)[: min(k, u - 1)]
        W[i, nearest] = np.exp(-row[nearest])
    W = np.maximum(W, W.T)
    W[u - isolated :] = 0
    W[:, u - isolated :] = 0
    return csr_array(W)


def laplacian(W, *, normalized=True, power=1):
    """``(I − D^{-1/2}WD^{-1/2})^p`` or ``(D − W)^p``; an isolated point's row is zero."""
    degrees = W.sum(axis=1)
    L = diags_array(degrees) - W
    if normalized:
        root = diags_array(1 / np.sqrt(np.where(degrees > 0, degrees, 1)))
        L = root @ L @ root
    G = csr_array(L)
    for _ in range(power - 1):
        G = csr_array(G @ L)
    G.sort_indices()
    return G


def with_repulsion(G, repulsion):
    """``G − (1 − ρ) diag(G 1)``: what pushes each point out of the crowd counts by ρ."""
    return csr_array(G - (1 - repulsion) * diags_array(G.sum(axis=1)))
