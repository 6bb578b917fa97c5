// The line search of nonlinear conjugate gradients, decided on the device: the host queues trials and looks rarely.
//
// A search is a row of numbers. Deciding about a trial makes the next row of a table of the last one, so that one look
// at the table tells the host of every step since its last look. It takes one thread, about a microsecond beside the
// evaluation that it decides about. The vectors follow in the same stream, one thread an entry, which first reads
// whether there is anything to do for it: once a search has ended, or waits for the host, all that is queued behind it
// changes nothing.

#define SEARCHING 0
#define ASKING 1    // the energy is NaN: the host gets the objective ready, then the same trial is made again
#define STOPPED 2   // as many steps as were asked for
#define FINISHED 3  // the gradient is small enough, or no lower energy was found

#define TAKEN 1  // the trial's own gradient is that of the point taken
#define KEPT 2   // the gradient kept from an earlier trial is

// The order is that of homophily.device.gpu.optimize.Search.
struct Search {
    real status;
    real step;         // of the next trial
    real accepted;     // 0, TAKEN or KEPT, of this trial
    real lower;        // 1 where this trial is the lowest so far, whose gradient is kept
    real turning;      // 1 where a new direction is wanted
    real beta;
    real moved;        // the last step taken
    real energy;       // at x, as the following
    real slope;        // <gradient, direction>
    real square;       // <gradient, gradient>
    real descent;      // <gradient, preconditioned gradient>
    real norm;         // of the gradient, relative to the optimiser's scale
    real iteration;
    real evaluations;
    real trials;       // along this direction
    real low_step;     // the lowest trial, x itself at first
    real low_energy;
    real low_slope;
    real low_square;
    real high_step;    // the bracket's other end, -1 where there is none yet
    real high_energy;
    real high_slope;
};

__device__ __forceinline__ bool is_finite(real value) { return value - value == 0; }

__device__ __forceinline__ void start_search(Search& s, real step) {
    s.step = step;
    s.trials = 0;
    s.low_step = 0;
    s.low_energy = s.energy;
    s.low_slope = s.slope;
    s.low_square = s.square;
    s.high_step = -1;
    s.high_energy = s.high_slope = 0;
    if (!(s.slope < 0)) s.status = FINISHED;
}

// The minimum of the cubic through both ends, kept inside the bracket; without a bracket, where the slope ends.
__device__ __forceinline__ real next_step(const Search& s) {
    if (s.high_step < 0) {
        real flattening = 1 - s.low_slope / s.slope;
        if (!(flattening > 0)) return 10 * s.low_step;
        real factor = 1 / flattening;
        return s.low_step * (factor < (real)1.5 ? (real)1.5 : factor > 10 ? (real)10 : factor);
    }
    real width = s.high_step - s.low_step, share = (real)0.1;
    if (is_finite(s.high_energy) && is_finite(s.high_slope)) {
        real d1 = s.low_slope + s.high_slope - 3 * (s.high_energy - s.low_energy) / width;
        real root = d1 * d1 - s.low_slope * s.high_slope;
        if (root >= 0) {
            real d2 = width < 0 ? -sqrt(root) : sqrt(root);
            real bottom = s.high_slope - s.low_slope + 2 * d2;
            if (bottom != 0) {
                share = 1 - (s.high_slope + d2 - d1) / bottom;
                share = share < (real)0.1 ? (real)0.1 : share > (real)0.9 ? (real)0.9 : share;
            }
        }
    }
    return s.low_step + width * share;
}

// The step to the lowest trial is taken.
__device__ __forceinline__ void accept(Search& s, int most_steps, real tolerance) {
    s.accepted = s.lower == 1 ? TAKEN : KEPT;
    s.moved = s.low_step;
    s.energy = s.low_energy;
    s.slope = s.low_slope;
    s.norm *= sqrt(s.low_square / s.square);
    s.square = s.low_square;
    s.iteration += 1;
    s.status = s.norm <= tolerance ? FINISHED : s.iteration >= most_steps ? STOPPED : SEARCHING;
    s.turning = s.status == SEARCHING;
}

// The row before any step; energy … scale are one number each. A NaN energy counts no evaluation.
extern "C" __global__ void search_begin(
    int most_steps, real tolerance, const real* energy /* 1 */, const real* square /* 1 */,
    const real* descent /* 1 */, const real* largest /* 1 */, const real* scale /* 1 */, real* row /* 22 */
) {
    if (global_thread() != 0) return;
    Search s = {};
    real norm = sqrt(*square);
    s.energy = *energy;
    s.slope = -*descent;
    s.square = *square;
    s.descent = *descent;
    s.norm = norm / (*scale > 0 ? *scale : norm > 0 ? norm : 1);
    // A full step that moves no value by more than 1.
    start_search(s, *largest > 1 ? 1 / *largest : 1);
    s.evaluations = 1;
    if (s.norm <= tolerance) s.status = FINISHED;
    else if (s.status == SEARCHING && most_steps <= 0) s.status = STOPPED;
    if (s.energy != s.energy) {
        s.status = ASKING;
        s.evaluations = 0;
    }
    *(Search*)row = s;
}

// What a trial's energy, <gradient, direction> and <gradient, gradient> mean for the search (strong Wolfe conditions).
extern "C" __global__ void search_decide(
    int most_trials, int most_steps, real decrease, real curvature, real tolerance, const real* before /* 22 */,
    const real* energy /* 1 */, const real* slope /* 1 */, const real* square /* 1 */, real* after /* 22 */
) {
    if (global_thread() != 0) return;
    Search s = *(const Search*)before;
    s.accepted = s.lower = s.turning = 0;
    if (s.status == SEARCHING && *energy != *energy) {
        s.status = ASKING;
    } else if (s.status == SEARCHING) {
        s.evaluations += 1;
        s.trials += 1;
        if (!(*energy <= s.energy + decrease * s.step * s.slope) || *energy >= s.low_energy) {
            s.high_step = s.step;
            s.high_energy = *energy;
            s.high_slope = *slope;
        } else {
            bool flat = fabs(*slope) <= -curvature * s.slope;
            if (!flat && (s.high_step < 0 ? *slope : *slope * (s.high_step - s.low_step)) >= 0) {
                s.high_step = s.low_step;
                s.high_energy = s.low_energy;
                s.high_slope = s.low_slope;
            }
            s.low_step = s.step;
            s.low_energy = *energy;
            s.low_slope = *slope;
            s.low_square = *square;
            s.lower = 1;
            if (flat) accept(s, most_steps, tolerance);
        }
        if (s.accepted == 0) {
            s.step = next_step(s);
            // The bracket is as narrow as floats go, or there were trials enough: the lowest one has to do.
            if (s.trials >= most_trials || s.step == s.low_step || s.step == s.high_step || !is_finite(s.step)) {
                if (s.low_step > 0) accept(s, most_steps, tolerance);
                else s.status = FINISHED;
            }
        }
    }
    *(Search*)after = s;
}

// Polak and Ribière's next direction, beta direction - preconditioned, given <gradient, preconditioned> and
// <gradient before, preconditioned>; where it does not fall, steepest descent starts again.
extern "C" __global__ void search_turn(
    const real* descent /* 1 */, const real* cross /* 1 */, real* row /* 22 */
) {
    if (global_thread() != 0) return;
    Search s = *(Search*)row;
    if (s.turning == 0) return;
    real beta = (*descent - *cross) / s.descent;
    if (!(beta > 0) || !(beta * s.slope < *descent)) beta = 0;
    s.beta = beta;
    s.slope = beta * s.slope - *descent;
    s.descent = *descent;
    start_search(s, s.moved);
    *(Search*)row = s;
}

// trial = x + step direction
extern "C" __global__ void search_trial(
    int size, const real* row /* 22 */, const real* x /* size */, const real* direction /* size */,
    real* trial /* size */
) {
    long long at = global_thread();
    if (at < size) trial[at] = x[at] + ((const Search*)row)->step * direction[at];
}

// Keeps the gradient of the lowest trial, or brings back the one that was kept.
extern "C" __global__ void search_keep(
    int size, const real* row /* 22 */, real* gradient /* size */, real* kept /* size */
) {
    const Search* s = (const Search*)row;
    long long at = global_thread();
    if (at >= size) return;
    if (s->accepted == KEPT) gradient[at] = kept[at];
    else if (s->lower == 1 && s->accepted == 0) kept[at] = gradient[at];
}

// The step and the turn of an accepted trial.
extern "C" __global__ void search_move(
    int size, const real* row /* 22 */, const real* gradient /* size */, const real* preconditioned /* size */,
    real* x /* size */, real* before /* size */, real* direction /* size */
) {
    const Search* s = (const Search*)row;
    long long at = global_thread();
    if (at >= size || s->accepted == 0) return;
    x[at] += s->moved * direction[at];
    before[at] = gradient[at];
    if (s->turning == 1) direction[at] = s->beta * direction[at] - preconditioned[at];
}
