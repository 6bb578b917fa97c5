// Tiles of K: relationships of all points with a few.
//
// One thread an entry. The few points (`positions`, transposed) are read by neighbouring threads side by side, a
// point's own values by all threads of a warp at once; both stay in the cache, so shared memory would save nothing.

// tile[i, z] = k(x) of the relationship function for x = ‖f_i − z‖² · inverse
extern "C" __global__ void relate_tile(
    int rows, int width, int dimensions, int function, quick inverse,
    const quick* F /* rows * dimensions */, const quick* positions /* dimensions * width */, real* tile /* rows * width */
) {
    long long at = global_thread();
    if (at >= (long long)rows * width) return;
    long long row = row_of(at, width);
    int z = (int)(at - row * width);
    quick x = 0;
    for (int d = 0; d < dimensions; ++d) {
        quick gap = F[row * dimensions + d] - positions[(long long)d * width + z];
        x += gap * gap;
    }
    tile[at] = relate(function, x * inverse);
}

// product[i, z] ← factor · product · dk/dx: from G K to what multiplies f_i − z in the gradient
extern "C" __global__ void tile_slopes(
    int rows, int width, int function, real factor, const real* tile /* rows * width */, real* product /* rows * width */
) {
    long long at = global_thread();
    if (at >= (long long)rows * width) return;
    product[at] *= factor * relate_slope(function, tile[at]);
}
