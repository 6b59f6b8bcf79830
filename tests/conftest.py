"""One thread of torch per test process: two collapse when tests run side by side."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
