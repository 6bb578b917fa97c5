#!/bin/sh
# Runs `homophily` with the kernels that were compiled when the image was built.
set -eu

# numba uses only caches in writable folders, and the image may be read-only, so copy the cache, a few MB, to /tmp.
# The copy is renamed in one step: another process of this container may look for it.
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
    copy=$(mktemp -d "$NUMBA_CACHE_DIR.XXXXXX")
    cp -R /opt/homophily/kernels/. "$copy"
    mv -T "$copy" "$NUMBA_CACHE_DIR" 2>/dev/null || rm -rf "$copy"
fi
# On a processor without AVX2, the kernels are compiled again.
if [ "${NUMBA_CPU_NAME:-}" = x86-64-v3 ] && ! grep -qw avx2 /proc/cpuinfo; then
    unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
fi
exec homophily "$@"
