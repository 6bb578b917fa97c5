#!/bin/sh
# Runs `homophily` with the kernels that were compiled when the image was built.
set -eu

# numba takes only caches in folders that it may write to, and the image's own may be read-only: a few MB in /tmp.
# It appears whole: another process of this container may be looking for it.
if [ ! -e "$NUMBA_CACHE_DIR" ]; then
    copy=$(mktemp -d "$NUMBA_CACHE_DIR.XXXXXX")
    cp -R /opt/homophily/kernels/. "$copy"
    mv -T "$copy" "$NUMBA_CACHE_DIR" 2>/dev/null || rm -rf "$copy"
fi
# On a processor without the instructions that they use, kernels are compiled anew, for that one.
if [ "${NUMBA_CPU_NAME:-}" = x86-64-v3 ] && ! grep -qw avx2 /proc/cpuinfo; then
    unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
fi
exec homophily "$@"
