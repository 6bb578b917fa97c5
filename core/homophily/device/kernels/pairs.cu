// Gauss sums over near pairs: for values in up to three dimensions that are scattered over many σ_f.
//
// Targets and sources come in an order that keeps near ones together. A block takes THREADS targets, one a thread, and
// walks over tiles of THREADS sources; a tile whose box is out of reach of the targets' box is skipped by the whole
// block, any other is loaded into shared memory once and read by all threads: (3 + 1) · THREADS reals, 4 KB, so that
// occupancy is bounded by registers, not by shared memory. Every target sums its sources in their order.

#define MOST_DIMENSIONS 3

// box[b, d], box[b, dimensions + d] = smallest and largest coordinate d among the THREADS points of tile b
extern "C" __global__ void tile_boxes(
    int points, int dimensions, int tiles, const real* x /* points * dimensions */, real* boxes /* tiles * 2 * dimensions */
) {
    int at = (int)global_thread();
    if (at >= tiles * dimensions) return;
    int tile = at / dimensions, d = at - tile * dimensions;
    long long first = (long long)tile * THREADS;
    real low = x[first * dimensions + d], high = low;
    for (int i = 1; i < THREADS && first + i < points; ++i) {
        real value = x[(first + i) * dimensions + d];
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    boxes[tile * 2 * dimensions + d] = low;
    boxes[tile * 2 * dimensions + dimensions + d] = high;
}

// sums[t, 0] = Σ_s w_s exp(−decay ‖x_t − y_s‖²), sums[t, 1 + d] its derivative by coordinate d of x_t;
// pairs with decay ‖·‖² ≥ farthest may be left out
extern "C" __global__ void pair_sums(
    int targets, int sources, int dimensions, int target_tiles, int source_tiles, real decay, real farthest,
    const real* x /* targets * dimensions */, const real* y /* sources * dimensions */, const real* weights /* sources */,
    const real* target_boxes /* target_tiles * 2 * dimensions */,
    const real* source_boxes /* source_tiles * 2 * dimensions */, real* sums /* targets * (dimensions + 1) */
) {
    __shared__ quick place[MOST_DIMENSIONS * THREADS];
    __shared__ quick weight[THREADS];
    long long t = global_thread();
    const real* box = target_boxes + (long long)blockIdx.x * 2 * dimensions;
    quick own[MOST_DIMENSIONS] = {0, 0, 0};
    Sum value = {}, slope[MOST_DIMENSIONS] = {};
    // Loops of a fixed length keep these small arrays in registers. Places count from the targets' box, where they have
    // more digits.
    for (int d = 0; d < MOST_DIMENSIONS; ++d)
        if (t < targets && d < dimensions) own[d] = x[t * dimensions + d] - box[d];
    for (int tile = 0; tile < source_tiles; ++tile) {
        const real* other = source_boxes + (long long)tile * 2 * dimensions;
        real apart = 0;
        for (int d = 0; d < dimensions; ++d) {
            real below = other[d] - box[dimensions + d], above = box[d] - other[dimensions + d];
            real gap = below > above ? below : above;
            if (gap > 0) apart += gap * gap;
        }
        if (apart * decay >= farthest) continue;
        int first = tile * THREADS;
        int count = sources - first < THREADS ? sources - first : THREADS;
        __syncthreads();
        if ((int)threadIdx.x < count) {
            for (int d = 0; d < dimensions; ++d)
                place[d * THREADS + threadIdx.x] = y[(long long)(first + threadIdx.x) * dimensions + d] - box[d];
            weight[threadIdx.x] = weights[first + threadIdx.x];
        }
        __syncthreads();
        for (int s = 0; s < count; ++s) {
            quick gaps[MOST_DIMENSIONS], square = 0;
            for (int d = 0; d < MOST_DIMENSIONS; ++d) {
                gaps[d] = d < dimensions ? own[d] - place[d * THREADS + s] : 0;
                square += gaps[d] * gaps[d];
            }
            quick part = weight[s] * exp(-(quick)decay * square);
            value.add(part);
            for (int d = 0; d < MOST_DIMENSIONS; ++d) slope[d].add(part * gaps[d]);
        }
    }
    if (t >= targets) return;
    sums[t * (dimensions + 1)] = value.total();
    for (int d = 0; d < MOST_DIMENSIONS; ++d)
        if (d < dimensions) sums[t * (dimensions + 1) + 1 + d] = -2 * decay * slope[d].total();
}
