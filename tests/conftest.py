"""One torch thread per test process: two are slower when tests run in parallel."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
