// The k smallest entries of every row of a matrix of float32, for any k.
//
// One block a row. The k-th smallest is found digit by digit: four passes count, in shared memory, how many of the
// entries that share the digits found so far have each value of the next eight bits (counting is the one use of
// atomics: integers add up to the same whatever their order). If more entries equal it than belong to the answer, the
// columns up to which they do are found in the same way, by four passes over the digits of the columns. A last pass
// writes the columns in whatever order threads come to them, and k rounds of exchanges sort these. In every pass
// neighbouring threads read neighbouring entries. Shared memory: 256 counters, 1 KB.

// Bits that order like the numbers: negative ones are reversed, positive ones come after them. NaN counts as largest,
// and adding 0 makes −0 the 0 that it equals.
__device__ __forceinline__ unsigned ordered(float value) {
    if (value != value) return 0xffffffffu;
    unsigned bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

extern "C" __global__ void smallest_columns(
    int rows, int columns, int k, const float* values /* rows * columns */, int* found /* rows * k */
) {
    __shared__ int counts[256];
    __shared__ unsigned prefix, last;
    __shared__ int wanted, written;
    __shared__ bool settled;
    const float* row = values + (long long)blockIdx.x * columns;
    int* out = found + (long long)blockIdx.x * k;
    if (threadIdx.x == 0) {
        prefix = last = 0;
        wanted = k;
        written = 0;
        settled = false;
    }
    for (int pass = 0; pass < 8; ++pass) {
        for (int digit = threadIdx.x; digit < 256; digit += THREADS) counts[digit] = 0;
        __syncthreads();
        if (settled) break;
        bool by_column = pass >= 4;
        int shift = 24 - 8 * (pass % 4);
        unsigned mask = shift == 24 ? 0u : 0xffffffffu << (shift + 8);
        for (int c = threadIdx.x; c < columns; c += THREADS) {
            unsigned bits = ordered(row[c]), key = by_column ? (unsigned)c : bits;
            if (by_column ? bits == prefix && (key & mask) == last : (key & mask) == prefix)
                atomicAdd(&counts[(key >> shift) & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 0;
            while (digit < 255 && wanted > counts[digit]) wanted -= counts[digit++];
            if (by_column) last |= (unsigned)digit << shift;
            else prefix |= (unsigned)digit << shift;
            // All that equal the k-th smallest belong to the answer.
            if (pass == 3 && wanted == counts[digit]) {
                settled = true;
                last = 0xffffffffu;
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < columns; c += THREADS) {
        unsigned bits = ordered(row[c]);
        if (bits < prefix || (bits == prefix && (unsigned)c <= last)) out[atomicAdd(&written, 1)] = c;
    }
    __syncthreads();
    for (int round = 0; round < k; ++round) {
        for (int at = 2 * (int)threadIdx.x + round % 2; at + 1 < k; at += 2 * THREADS) {
            int first = out[at], second = out[at + 1];
            if (first > second) {
                out[at] = second;
                out[at + 1] = first;
            }
        }
        __syncthreads();
    }
}
