// Sums of products by column, in two stages and without atomics: the bits depend on the sizes alone.
//
// Stage one: a block sums 4 rows a thread (ROWS in all) of one column, then the block's threads by a tree in shared
// memory (THREADS reals, 1 KB). Stage two: one block a column adds the blocks' sums the same way. Four rows a thread
// hide the latency of the reads; 60,000 rows make 118 blocks a column, about one for each multiprocessor of a large GPU.

#define STEPS 4
#define ROWS (STEPS * THREADS)

// partial[b, c] = Σ over the rows of block b of x[row, c] y[row, c]
extern "C" __global__ void column_dots(
    int rows, int columns, int blocks,
    const real* x /* rows * columns */, const real* y /* rows * columns */, real* partial /* blocks * columns */
) {
    __shared__ real scratch[THREADS];
    int column = blockIdx.y;
    long long first = (long long)blockIdx.x * ROWS;
    real total = 0;
    for (int step = 0; step < STEPS; ++step) {
        long long row = first + step * THREADS + threadIdx.x;
        if (row < rows) total += x[row * columns + column] * y[row * columns + column];
    }
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) partial[(long long)blockIdx.x * columns + column] = total;
}

// out[c] = Σ_b partial[b, c]
extern "C" __global__ void column_sums(
    int blocks, int columns, const real* partial /* blocks * columns */, real* out /* columns */
) {
    __shared__ real scratch[THREADS];
    int column = blockIdx.x;
    real total = 0;
    for (int block = threadIdx.x; block < blocks; block += THREADS)
        total += partial[(long long)block * columns + column];
    total = block_sum(total, scratch);
    if (threadIdx.x == 0) out[column] = total;
}
