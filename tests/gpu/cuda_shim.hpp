// Just enough CUDA for the project's kernels to be compiled by g++ and run on the CPU, one block after the other.
//
// The threads of a block are fibers: each runs until its next barrier, in an order that is drawn anew between any two
// barriers, so that a missing barrier shows as a result that depends on the seed. Shared variables live in a section of
// their own, which is filled with NaN (and -1) before every block: nothing is inherited from the block before.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared_memory")))

extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

struct Index {
    unsigned x, y, z;
};
static Index blockIdx, threadIdx, blockDim, gridDim;

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

template <typename Number>
static inline Number atomicAdd(Number* where, Number value) {
    Number before = *where;
    *where += value;
    return before;
}

#ifdef __cplusplus
static inline void sincos(float angle, float* sine, float* cosine) { sincosf(angle, sine, cosine); }
#endif

namespace emulation {

const size_t STACK = 64 * 1024;
const unsigned MOST_THREADS = 1024;

typedef void (*Body)(void** arguments);

struct Fiber {
    ucontext_t context;
    char* stack;
    bool finished;
    bool started;
    void* fake_stack;
    jmp_buf place;
    void* top;
};

static Fiber* fibers[MOST_THREADS];
static ucontext_t scheduler;
static jmp_buf scheduler_place;
static void* scheduler_top = nullptr;
static void* scheduler_fake_stack = nullptr;
static const void* scheduler_stack = nullptr;
static size_t scheduler_size = 0;
static int current = -1;
static Body body = nullptr;
static void** body_arguments = nullptr;

// Fisher and Yates with a linear congruential generator: any reproducible order will do.
static void shuffle(unsigned* order, unsigned size, unsigned long long& random) {
    for (unsigned last = size; last > 1; --last) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        unsigned other = (unsigned)((random >> 32) * last >> 32), kept = order[other];
        order[other] = order[last - 1];
        order[last - 1] = kept;
    }
}

// Switching by swapcontext asks the kernel of the operating system each time; _longjmp does not, and is ten times as
// fast, but the sanitizers cannot follow it. Registers and the stack's top alone are several times as fast again.
#if defined(__x86_64__) && !SANITIZED
#define SWITCHED 1
extern "C" void emulation_switch(void** kept, void* top);
__asm__(
    ".text\n.local emulation_switch\n.type emulation_switch, @function\nemulation_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
#define SWITCHED 0
#endif

static void begin();

static void enter(Fiber* fiber) {
#if SANITIZED
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber->stack, STACK);
    swapcontext(&scheduler, &fiber->context);
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#elif SWITCHED
    if (!fiber->started) {
        // Six registers, and where to return to: as if begin had been called.
        void** top = (void**)(fiber->stack + STACK) - 2;
        *top = (void*)begin;
        fiber->top = top - 6;
    }
    fiber->started = true;
    emulation_switch(&scheduler_top, fiber->top);
#else
    if (_setjmp(scheduler_place)) return;
    if (fiber->started) _longjmp(fiber->place, 1);
    fiber->started = true;
    setcontext(&fiber->context);
#endif
}

static void leave(Fiber* fiber) {
#if SANITIZED
    __sanitizer_start_switch_fiber(&fiber->fake_stack, scheduler_stack, scheduler_size);
    swapcontext(&fiber->context, &scheduler);
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &scheduler_stack, &scheduler_size);
#elif SWITCHED
    emulation_switch(&fiber->top, scheduler_top);
#else
    if (!_setjmp(fiber->place)) _longjmp(scheduler_place, 1);
#endif
}

// A fiber serves one thread of every block that is run: it never ends.
static void begin() {
#if SANITIZED
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
    Fiber* fiber = fibers[current];
    for (;;) {
        body(body_arguments);
        fiber->finished = true;
        leave(fiber);
    }
}

// Runs until the next barrier or the end, all threads of the block once a round. A thread that ends while others wait
// at a barrier is counted: on a GPU that is undefined.
static int run_block(unsigned threads, bool has_barriers, unsigned long long& random) {
    unsigned order[MOST_THREADS];
    for (unsigned t = 0; t < threads; ++t) order[t] = t;
    if (__start_shared_memory) memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
    if (!has_barriers) {
        shuffle(order, threads, random);
        for (unsigned t = 0; t < threads; ++t) {
            threadIdx.x = order[t];
            body(body_arguments);
        }
        return 0;
    }
    for (unsigned t = 0; t < threads; ++t) {
        if (!fibers[t]) {
            fibers[t] = (Fiber*)calloc(1, sizeof(Fiber));
            fibers[t]->stack = (char*)malloc(STACK);
            getcontext(&fibers[t]->context);
            fibers[t]->context.uc_stack.ss_sp = fibers[t]->stack;
            fibers[t]->context.uc_stack.ss_size = STACK;
            makecontext(&fibers[t]->context, begin, 0);
        }
        fibers[t]->finished = false;
    }
    for (;;) {
        shuffle(order, threads, random);
        unsigned finished = 0;
        for (unsigned t = 0; t < threads; ++t) {
            current = (int)order[t];
            threadIdx.x = order[t];
            enter(fibers[current]);
            finished += fibers[current]->finished;
        }
        if (finished == threads) return 0;
        if (finished != 0) return 1;
    }
}

// 0, or 1 if threads of a block disagreed about a barrier.
static int run(unsigned blocks, unsigned across, unsigned threads, unsigned seed, bool has_barriers, Body kernel,
               void** arguments) {
    unsigned long long random = seed;
    unsigned count = blocks * across;
    unsigned* order = (unsigned*)malloc(count * sizeof(unsigned));
    for (unsigned b = 0; b < count; ++b) order[b] = b;
    shuffle(order, count, random);
    body = kernel;
    body_arguments = arguments;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, across, 1};
    int failed = 0;
    for (unsigned b = 0; b < count && !failed; ++b) {
        blockIdx = {order[b] % blocks, order[b] / blocks, 0};
        failed = run_block(threads, has_barriers, random);
    }
    free(order);
    return failed;
}

}  // namespace emulation

static inline void __syncthreads() {
    emulation::Fiber* fiber = emulation::fibers[emulation::current];
    unsigned own = threadIdx.x;
    emulation::leave(fiber);
    threadIdx.x = own;
}
