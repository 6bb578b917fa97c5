// The sparse form of the regulariser: relationships of the pairs (i, j) of a mask alone.
//
// One thread a pair. Pairs of a row of the mask follow each other, so that neighbouring threads read the same row of the
// mask and near rows of the graph, from the cache. Nothing is scattered: what a pair pulls is written, and summed by
// products with the mask and its transpose.

// values[a] = k(x) of the relationship function for x = ‖f_i − f_j‖² · inverse of pair a
extern "C" __global__ void masked_values(
    int pairs, int points, int dimensions, int function, real inverse, const int* rows /* pairs */,
    const int* columns /* pairs */, const real* F /* points * dimensions */, real* values /* pairs */
) {
    long long a = global_thread();
    if (a >= pairs) return;
    const real* own = F + (long long)rows[a] * dimensions;
    const real* other = F + (long long)columns[a] * dimensions;
    real x = 0;
    for (int d = 0; d < dimensions; ++d) x += (own[d] - other[d]) * (own[d] - other[d]);
    values[a] = relate(function, x * inverse);
}

// With half = k_a delta_a − Σ_l W_jl K_il over the pairs (i, l) of the mask, whose rows have ascending columns:
// energies[a] = k_a half, pulls[a] = factor half dk/dx.
extern "C" __global__ void masked_pulls(
    int pairs, int points, int entries, int function, real factor, const int* mask /* points + 1 */,
    const int* rows /* pairs */, const int* columns /* pairs */, const int* indptr /* points + 1 */,
    const int* indices /* entries */, const real* data /* entries */, const real* delta /* pairs */,
    const real* values /* pairs */, real* energies /* pairs */, real* pulls /* pairs */
) {
    long long a = global_thread();
    if (a >= pairs) return;
    int begin = mask[rows[a]], end = mask[rows[a] + 1];
    real product = 0;
    for (int e = indptr[columns[a]]; e < indptr[columns[a] + 1]; ++e) {
        int wanted = indices[e], low = begin, high = end;
        while (low < high) {
            int middle = low + (high - low) / 2;
            if (columns[middle] < wanted) low = middle + 1; else high = middle;
        }
        if (low < end && columns[low] == wanted) product += data[e] * values[low];
    }
    real half = values[a] * delta[a] - product;
    energies[a] = values[a] * half;
    pulls[a] = factor * half * relate_slope(function, values[a]);
}
