"""K and its regulariser tr(KᵀGK), K_ij = exp(−‖f_i − f_j‖²/σ_f²): the engines and the choice between them.

Every engine is built once for a graph matrix G and called with F: ``engine(F) -> (energy, gradient)``.

==========  ==========  =======================================================================================
name        dimensions  what it does
==========  ==========  =======================================================================================
dense       any         K as a matrix: the oracle, for small u
tiles       any         K a tile at a time: exact, O(u²) time, bounded memory
chebyshev   1           Gauss sums by piecewise polynomials: linear time, error near 1e-13
cells       1 to 3      Gauss sums over a grid, Fourier modes or near pairs, whichever F asks for: to a tolerance
nufft       1 to 3      Gauss sums by non-uniform Fourier transforms: to a tolerance, for F of bounded range
nystrom     any         K of low rank: linear time, its error is estimated, a large one warned of
==========  ==========  =======================================================================================

The masked form of sparse ERR is in ``homophily.relationship.masked``. With ``relationship="cauchy"`` K is
1/(1 + ‖f_i − f_j‖²/σ_f²), whose tail still pulls far points: for "dense", "tiles" and the masked form.
"""
