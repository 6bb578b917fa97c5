// What every kernel file starts with; the launcher puts it in front of each.
//
// `real` is float64. `quick` is too, unless the launcher compiles with -DMIXED: then Gauss sums compute their terms in
// float32, for devices whose float64 has 1/32 or 1/64 of that speed, and add them up as exactly as in float64. Launches are one thread per unit of work, THREADS
// threads per block: a multiple of the warp on every architecture, small enough that the registers of the largest kernel
// still allow several blocks a multiprocessor. Sums are taken in an order that depends on sizes alone (never on the
// device, on timing, or on atomics over floating-point numbers), so that a repeated run gives the same bits.
//
// A comment behind a pointer argument is the number of its elements in terms of the integer arguments; the launcher
// reads these signatures and refuses arrays that are smaller.

typedef double real;
#define THREADS 128

#ifdef MIXED
typedef float quick;

// Kahan's sum: as many registers as a float64, and nearly its digits.
struct Sum {
    quick high, low;
    __device__ __forceinline__ void add(quick term) {
        quick corrected = term - low, next = high + corrected;
        low = (next - high) - corrected;
        high = next;
    }
    __device__ __forceinline__ real total() const { return (real)high - (real)low; }
};
#else
typedef double quick;

struct Sum {
    real high;
    __device__ __forceinline__ void add(real term) { high += term; }
    __device__ __forceinline__ real total() const { return high; }
};
#endif

__device__ __forceinline__ long long global_thread() {
    return (long long)blockIdx.x * THREADS + threadIdx.x;
}

// at / columns; in 32 bits where it fits, as a division in 64 costs as much as reading a short row.
__device__ __forceinline__ int row_of(long long at, int columns) {
    return at >> 31 == 0 ? (int)((unsigned)at / (unsigned)columns) : (int)(at / columns);
}

// Sum over the block's threads by a tree in shared memory; every thread of the block must call it. The result is
// right in thread 0. The first barrier keeps a thread that is still reading the last call's scratch from being overtaken.
__device__ __forceinline__ real block_sum(real value, real* scratch) {
    __syncthreads();
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    return scratch[0];
}

// The relationship functions of homophily.relationship.functions: id, k(x), and dk/dx in terms of k.
#define RELATIONSHIPS(ADD)      \
    ADD(0, exp(-x), -k)         \
    ADD(1, 1 / (1 + x), -k * k)

#define VALUE(id, value, slope) case id: return value;
__device__ __forceinline__ quick relate(int function, quick x) {
    switch (function) { RELATIONSHIPS(VALUE) default: return 0; }
}

#define SLOPE(id, value, slope) case id: return slope;
__device__ __forceinline__ quick relate_slope(int function, quick k) {
    switch (function) { RELATIONSHIPS(SLOPE) default: return 0; }
}
