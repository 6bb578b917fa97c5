// Products of a sparse matrix with a block of columns, each row summed in the order it is stored.
//
// One thread an entry of the result, neighbouring threads on neighbouring columns, so that a warp reads whole lines of
// x. Rows of a neighbour graph are short (10 to 140 entries) and nearly equally long: a warp a row would leave most
// lanes idle, and its sum would need a second order. No shared memory: a row's indices are read by all its columns'
// threads at once, from the cache.

__device__ __forceinline__ real row_times(
    int row, int column, int columns, const int* indptr, const int* indices, const real* data, const real* x
) {
    real total = 0;
    for (int e = indptr[row]; e < indptr[row + 1]; ++e)
        total += data[e] * x[(long long)indices[e] * columns + column];
    return total;
}

// out = A x
extern "C" __global__ void csr_product(
    int rows, int inner, int columns, int entries,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real* out /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * columns) return;
    int row = row_of(at, columns);
    out[at] = row_times(row, (int)(at - (long long)row * columns), columns, indptr, indices, data, x);
}

// out = alpha A x + diag(beta) y: the last of p products with L makes (H + λ L^p) y in the same pass.
extern "C" __global__ void csr_product_plus(
    int rows, int inner, int columns, int entries,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real alpha, const real* beta /* rows */,
    const real* y /* rows * columns */, real* out /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * columns) return;
    int row = row_of(at, columns);
    int column = (int)(at - (long long)row * columns);
    out[at] = alpha * row_times(row, column, columns, indptr, indices, data, x) + beta[row] * y[at];
}

// The kernels of the preconditioner, Chebyshev steps of p products each. All that happens to a row's own entries goes
// along with a product, in one launch instead of ten; and nothing happens where go[0] is 0, as for the gradients of
// trials that no step is taken to.

// out = A x
extern "C" __global__ void csr_product_if(
    int rows, int inner, int columns, int entries, const real* go /* 1 */,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const real* x /* inner * columns */, real* out /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * columns || *go == 0) return;
    int row = row_of(at, columns);
    out[at] = row_times(row, (int)(at - (long long)row * columns), columns, indptr, indices, data, x);
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
    int rows, int columns, int entries, const real* go /* 1 */,
    const int* indptr /* rows + 1 */, const int* indices /* entries */, const real* data /* entries */,
    real alpha, real keep, real gain, const real* root /* rows */, const real* shifted /* rows */,
    const real* smooth /* rows * columns */, const real* scaled /* rows * columns */,
    real* residual /* rows * columns */, real* step /* rows * columns */, real* next /* rows * columns */,
    real* out /* rows * columns */
) {
    long long at = global_thread();
    if (at >= (long long)rows * columns || *go == 0) return;
    int row = row_of(at, columns);
    real product = row_times(row, (int)(at - (long long)row * columns), columns, indptr, indices, data, smooth);
    real own = root[row];
    residual[at] -= own * (shifted[row] * scaled[at] + alpha * product);
    step[at] = keep * step[at] + gain * residual[at];
    next[at] = own * step[at];
    out[at] += next[at];
}
