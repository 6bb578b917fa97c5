"""A disk that fails once: a call that writes to the store of arrays, or syncs it, fails when a plan says so.

The plan is a file with the system's error number and the number of calls that succeed first: each call decreases that
number, and the one that fails removes the file.
"""

import os

PLAN = os.environ["FAILING_DISK"]
STORE = os.path.join(os.environ["HOMOPHILY_DATA_DIR"], "blobs")


def failing(call):
    """Wrap a call so that it fails according to the plan."""

    def as_planned(descriptor, *rest):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(STORE) and os.path.exists(PLAN):
            with open(PLAN, "r+") as plan:
                error, left = map(int, plan.read().split())
                if not left:
                    os.unlink(PLAN)
                    raise OSError(error, os.strerror(error))
                plan.seek(0)
                plan.truncate()
                plan.write(f"{error} {left - 1}")
        return call(descriptor, *rest)

    return as_planned


os.write, os.fsync = failing(os.write), failing(os.fsync)
