#!/bin/sh
# Runs `homophily` with the kernels that were compiled when the image was built.
set -eu

# numba takes only caches in folders that it may write to, and the image's own may be read-only: a few MB in /tmp.
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
    cp -R /opt/homophily/kernels "$NUMBA_CACHE_DIR"
fi
# On a processor without the instructions that they use, kernels are compiled anew, for that one.
if [ "${NUMBA_CPU_NAME:-}" = x86-64-v3 ] && ! grep -qw avx2 /proc/cpuinfo; then
    unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
fi
exec homophily "$@"
