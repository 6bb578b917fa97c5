// Distances in float64 in the place of scores in float32 whose rounding is larger than what they compare.
//
// One thread an entry. Neighbouring threads read different points, a cache line each; but only the few entries within
// a row's limit are computed at all, and the sum over the dimensions stays within the lines that were fetched.

// More than any distance between scaled points, and finite.
#define FAR 3e38f

// scores[i, first + x] <- ‖row i − point x‖ where the score is at most limits[i], FAR where it is not
extern "C" __global__ void distances_below(
    int rows, int columns, int first, int count, int dimensions, const real* exact_rows /* rows * dimensions */,
    const real* points /* count * dimensions */, const real* limits /* rows */, float* scores /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * count) return;
    int row = row_of(at, count);
    long long x = at - (long long)row * count;
    float* score = scores + (long long)row * columns + first + x;
    if (*score > limits[row]) {
        *score = FAR;
        return;
    }
    real square = 0;
    for (int d = 0; d < dimensions; ++d) {
        real gap = exact_rows[(long long)row * dimensions + d] - points[x * dimensions + d];
        square += gap * gap;
    }
    // Not the square, which may be too small for a float32.
    *score = (float)sqrt(square);
}
