"""A disk that fails once: a call that writes to the store of arrays, or syncs it, while a plan says so.

The plan is a file with the number of the system's error, and of the calls that go well before: each takes one off, and
the one that fails takes the file away.
"""

import os

PLAN = os.environ["FAILING_DISK"]
STORE = os.path.join(os.environ["HOMOPHILY_DATA_DIR"], "blobs")


def failing(call):
    """The call, which fails when its time has come."""

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
