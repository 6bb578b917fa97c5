// The k smallest entries of every row of a matrix of float32, for any k.
//
// One block a row. The k-th smallest is found digit by digit: four passes count, in shared memory, how many of the
// entries that share the digits found so far have each value of the next eight bits (counting is the one use of
// atomics: integers add up to the same whatever their order). A last pass writes the columns of all smaller entries
// and, of those equal to the k-th, the first few. Threads own contiguous stretches of the row, so that a prefix sum over
// the threads puts columns in ascending order. Shared memory: 256 counters and 2 · THREADS offsets, 2 KB.

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
    __shared__ unsigned prefix;
    __shared__ int wanted;
    __shared__ int smaller[THREADS];
    __shared__ int equal[THREADS];
    const float* row = values + (long long)blockIdx.x * columns;
    if (threadIdx.x == 0) {
        prefix = 0;
        wanted = k;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int digit = threadIdx.x; digit < 256; digit += THREADS) counts[digit] = 0;
        __syncthreads();
        unsigned mask = shift == 24 ? 0u : 0xffffffffu << (shift + 8);
        for (int c = threadIdx.x; c < columns; c += THREADS) {
            unsigned bits = ordered(row[c]);
            if ((bits & mask) == prefix) atomicAdd(&counts[(bits >> shift) & 255u], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 0;
            while (digit < 255 && wanted > counts[digit]) wanted -= counts[digit++];
            prefix |= (unsigned)digit << shift;
        }
        __syncthreads();
    }
    // Now `prefix` is the k-th smallest, and `wanted` of its equals belong to the answer.
    int stretch = (columns + THREADS - 1) / THREADS;
    int begin = (int)threadIdx.x * stretch, end = begin + stretch < columns ? begin + stretch : columns;
    int below = 0, same = 0;
    for (int c = begin; c < end; ++c) {
        unsigned bits = ordered(row[c]);
        below += bits < prefix;
        same += bits == prefix;
    }
    smaller[threadIdx.x] = below;
    equal[threadIdx.x] = same;
    __syncthreads();
    int before = 0, same_before = 0;
    for (int other = 0; other < (int)threadIdx.x; ++other) {
        before += smaller[other];
        same_before += equal[other];
    }
    int taken = same_before < wanted ? same_before : wanted;
    int* out = found + (long long)blockIdx.x * k;
    for (int c = begin; c < end; ++c) {
        unsigned bits = ordered(row[c]);
        if (bits < prefix || (bits == prefix && taken < wanted)) {
            out[before + taken] = c;
            if (bits == prefix) ++taken; else ++before;
        }
    }
}
