// Gauss sums on a line by Fourier modes: the pass over points and the pass over edges.
//
// With base frequency ω and modes q = 0 … , S_q = Σ_i exp(i q ω f_i) and N_q = Σ_(j,k) G_jk φ_jk exp(i q ω m_jk) give
//     g(m) = Σ_q c_q Re(conj(S_q) exp(i q ω m)),    E = Σ_q c_q Re(conj(S_q) N_q).
// Modes are visited MODES at a time: a thread keeps the sums of that many in registers (8 complex numbers are 32
// registers; more would spill or leave few threads a multiprocessor), and everything is linear in the modes, so that
// passes add up. Nothing is scattered: a row of G belongs to `lanes` threads (as in csr.cu), which see every edge from its own end;
// sums over all rows go through a tree in shared memory (THREADS reals, 1 KB) and then over the blocks, whose number
// depends on the size alone. exp(i q ω m) = z_j z_k with the half phases z_j = exp(i q ω f_j / 2) of the points, so an edge costs
// no sine: 12 bytes of the graph, 40 of the other point, one exponential and about 20 operations a mode.

#define MODES 8

struct Phase { quick re, im; };

// exp(i angle). Whole turns are taken off before the angle loses digits.
__device__ __forceinline__ Phase phase_of(real angle) {
    real turns = angle * (real)0.15915494309189535;
    Phase phase;
    sincos((quick)(turns - rint(turns)) * (quick)6.283185307179586, &phase.im, &phase.re);
    return phase;
}

__device__ __forceinline__ Phase times(Phase a, Phase b) {
    Phase c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return c;
}

__device__ __forceinline__ void store_sums(const Sum* sums, real* scratch, real* partial) {
    for (int at = 0; at < 2 * MODES; ++at) {
        real total = block_sum(sums[at].total(), scratch);
        if (threadIdx.x == 0) partial[(long long)blockIdx.x * 2 * MODES + at] = total;
    }
}

// partial[b, 2r], partial[b, 2r + 1] = Re and Im of Σ_i exp(i (first + r) ω f_i) over the points of block b
extern "C" __global__ void point_modes(
    int points, int first, int blocks, real omega, const real* f /* points */, real* partial /* blocks * 16 */
) {
    __shared__ real scratch[THREADS];
    Sum sums[2 * MODES] = {};
    for (int i = (int)global_thread(); i < points; i += blocks * THREADS) {
        Phase step = phase_of(omega * f[i]), now = phase_of(first * (omega * f[i]));
        for (int r = 0; r < MODES; ++r) {
            sums[2 * r].add(now.re);
            sums[2 * r + 1].add(now.im);
            now = times(now, step);
        }
    }
    store_sums(sums, scratch, partial);
}

// half[i] = exp(i ω f_i / 2), exp(i first ω f_i / 2): as re, im, re, im
extern "C" __global__ void half_phases(
    int points, int first, real omega, const real* f /* points */, quick* half /* 4 * points */
) {
    int i = (int)global_thread();
    if (i >= points) return;
    real angle = omega * f[i] / 2;
    Phase step = phase_of(angle), now = phase_of(first * angle);
    half[4 * i] = step.re, half[4 * i + 1] = step.im;
    half[4 * i + 2] = now.re, half[4 * i + 3] = now.im;
}

// The modes first … first + MODES − 1 of g, read at the edges' middles, and those of N.
// weights[2r], weights[2r + 1] = c_q Re S_q, −c_q Im S_q. gradient[j] += Σ_k 2 G φ (½ g'(m) − (f_j − f_k)/σ² g(m)).
extern "C" __global__ void edge_modes(
    int points, int entries, int lanes, int first, int blocks, quick omega, quick inverse,
    const int* indptr /* points + 1 */, const int* indices /* entries */, const real* data /* entries */,
    const quick* f /* points */, const quick* half /* 4 * points */, const real* weights /* 16 */,
    real* gradient /* points */, real* partial /* blocks * 16 */
) {
    __shared__ real scratch[THREADS];
    // Read anew for every edge: kept in registers, it would take 64 of 156 and leave too few threads a multiprocessor.
    __shared__ volatile quick field[2 * MODES];
    if (threadIdx.x < 2 * MODES) field[threadIdx.x] = weights[threadIdx.x];
    __syncthreads();
    Sum sums[2 * MODES] = {};
    int together = THREADS / lanes, lane = threadIdx.x % lanes;
    // All threads of a block take part in every round, as they wait for each other.
    for (long long begin = (long long)blockIdx.x * together; begin < points; begin += (long long)blocks * together) {
        long long j = begin + threadIdx.x / lanes;
        bool inside = j < points;
        quick own = inside ? f[j] : 0;
        Sum sum = {};
        Phase own_step = {0, 0}, own_first = {0, 0};
        if (inside) {
            own_step.re = half[4 * j], own_step.im = half[4 * j + 1];
            own_first.re = half[4 * j + 2], own_first.im = half[4 * j + 3];
        }
        for (int e = inside ? indptr[j] + lane : 0; inside && e < indptr[j + 1]; e += lanes) {
            int k = indices[e];
            quick gap = own - f[k];
            quick strength = (quick)data[e] * exp(-gap * gap * inverse / 2);
            Phase other_step = {half[4 * k], half[4 * k + 1]}, other_first = {half[4 * k + 2], half[4 * k + 3]};
            Phase step = times(own_step, other_step), now = times(own_first, other_first);
            quick value = 0, slope = 0;
            for (int r = 0; r < MODES; ++r) {
                value += field[2 * r] * now.re - field[2 * r + 1] * now.im;
                slope -= (first + r) * (field[2 * r] * now.im + field[2 * r + 1] * now.re);
                sums[2 * r].add(strength * now.re);
                sums[2 * r + 1].add(strength * now.im);
                now = times(now, step);
            }
            sum.add(strength * (omega * slope - 2 * gap * inverse * value));
        }
        real pull = sum.total();
        scratch[threadIdx.x] = pull;
        __syncthreads();
        if (inside && lane == 0) {
            for (int other = 1; other < lanes; ++other) pull += scratch[threadIdx.x + other];
            gradient[j] += pull;
        }
        __syncthreads();
    }
    store_sums(sums, scratch, partial);
}

// gradient[i] += Σ_q c_q q ω (Im N_q cos(q ω f_i) − Re N_q sin(q ω f_i)); weights[2r], weights[2r + 1] = c_q N_q
extern "C" __global__ void adjoint_modes(
    int points, int first, real omega, const real* f /* points */, const real* weights /* 16 */,
    real* gradient /* points */
) {
    int i = (int)global_thread();
    if (i >= points) return;
    Phase step = phase_of(omega * f[i]), now = phase_of(first * (omega * f[i]));
    quick pull = 0;
    for (int r = 0; r < MODES; ++r) {
        pull += (first + r) * ((quick)weights[2 * r + 1] * now.re - (quick)weights[2 * r] * now.im);
        now = times(now, step);
    }
    gradient[i] += omega * pull;
}
