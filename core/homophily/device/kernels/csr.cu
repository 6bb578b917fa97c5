// Products of a sparse matrix with a block of columns.
//
// `lanes` neighbouring threads share an entry of the result: a power of two up to 32, which the host chooses by the mean
// length of the rows. Side by side they read a row's entries, whole lines of memory at once; and a warp has fewer rows,
// so that it waits less for the longest of them than with one thread a row. Groups of lanes work on neighbouring
// columns. The lanes' sums meet in shared memory (THREADS reals, 1 KB) and are added in their order, so that the bits
// depend on the matrix and the number of columns alone.

struct Place {
    long long at;  // of the result
    int row, column, lane;
    bool inside;
};

__device__ __forceinline__ Place place_of(int rows, int columns, int lanes) {
    Place place;
    place.at = (long long)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    place.inside = place.at < (long long)rows * columns;
    place.row = row_of(place.at, columns);
    place.column = (int)(place.at - (long long)place.row * columns);
    place.lane = threadIdx.x % lanes;
    return place;
}

// Every thread of the block must call it. The result is right in lane 0.
__device__ __forceinline__ real row_times(
    const Place& place, int columns, int lanes, const int* indptr, const int* indices, const real* data,
    const real* x, real* scratch
) {
    real total = 0;
    if (place.inside)
        for (int e = indptr[place.row] + place.lane; e < indptr[place.row + 1]; e += lanes)
            total += data[e] * x[(long long)indices[e] * columns + place.column];
    if (lanes == 1) return total;
    scratch[threadIdx.x] = total;
    __syncthreads();
    if (place.lane == 0)
        for (int other = 1; other < lanes; ++other) total += scratch[threadIdx.x + other];
    return total;
}

// out = A x
extern "C" __global__ void csr_product(
    int rows, int inner, int columns, int lanes, int entries,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real* out /* rows * columns */
) {
    __shared__ real scratch[THREADS];
    Place place = place_of(rows, columns, lanes);
    real product = row_times(place, columns, lanes, indptr, indices, data, x, scratch);
    if (!place.inside || place.lane != 0) return;
    out[place.at] = product;
}

// out = alpha A x + diag(beta) y: the last of p products with L makes (H + λ L^p) y in the same pass.
extern "C" __global__ void csr_product_plus(
    int rows, int inner, int columns, int lanes, int entries,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real alpha, const real* beta /* rows */,
    const real* y /* rows * columns */, real* out /* rows * columns */
) {
    __shared__ real scratch[THREADS];
    Place place = place_of(rows, columns, lanes);
    real product = row_times(place, columns, lanes, indptr, indices, data, x, scratch);
    if (!place.inside || place.lane != 0) return;
    out[place.at] = alpha * product + beta[place.row] * y[place.at];
}

// The kernels of the preconditioner, Chebyshev steps of p products each. All that happens to a row's own entries goes
// along with a product, in one launch instead of ten; and nothing happens where go[0] is 0, as for the gradients of
// trials that no step is taken to.

// out = A x
extern "C" __global__ void csr_product_if(
    int rows, int inner, int columns, int lanes, int entries, const real* go /* 1 */,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real* out /* rows * columns */
) {
    if (*go == 0) return;
    __shared__ real scratch[THREADS];
    Place place = place_of(rows, columns, lanes);
    real product = row_times(place, columns, lanes, indptr, indices, data, x, scratch);
    if (!place.inside || place.lane != 0) return;
    out[place.at] = product;
}

// residual = R b, step = residual / centre, scaled = out = R step, with R = diag(root)
extern "C" __global__ void chebyshev_begin(
    int rows, int columns, const real* go /* 1 */, real centre, const real* root /* rows */,
    const real* b /* rows * columns */, real* residual /* rows * columns */, real* step /* rows * columns */,
    real* scaled /* rows * columns */, real* out /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * columns || *go == 0) return;
    real own = root[row_of(at, columns)];
    residual[at] = own * b[at];
    step[at] = residual[at] / centre;
    scaled[at] = out[at] = own * step[at];
}

// residual -= R (diag(shifted) scaled + alpha A smooth), step = keep step + gain residual, out += next = R step;
// smooth is A^(p-1) scaled, next another array than it.
extern "C" __global__ void chebyshev_step(
    int rows, int columns, int lanes, int entries, const real* go /* 1 */,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    real alpha, real keep, real gain, const real* root /* rows */, const real* shifted /* rows */,
    const real* smooth /* rows * columns */, const real* scaled /* rows * columns */,
    real* residual /* rows * columns */, real* step /* rows * columns */, real* next /* rows * columns */,
    real* out /* rows * columns */
) {
    if (*go == 0) return;
    __shared__ real scratch[THREADS];
    Place place = place_of(rows, columns, lanes);
    real product = row_times(place, columns, lanes, indptr, indices, data, smooth, scratch);
    if (!place.inside || place.lane != 0) return;
    long long at = place.at;
    real own = root[place.row];
    residual[at] -= own * (shifted[place.row] * scaled[at] + alpha * product);
    step[at] = keep * step[at] + gain * residual[at];
    next[at] = own * step[at];
    out[at] += next[at];
}
