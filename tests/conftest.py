"""One torch thread per test process: two are slower when tests run in parallel.

Ctrl-C is not ignored, also where the tests run as a background job of a script.
"""

import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
