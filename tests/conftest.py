"""What all tests share: no deadlines on a busy machine, one thread for small models, and a Ctrl+C that arrives."""

import os
import signal

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
settings.register_profile("fedappeal", deadline=None)
settings.load_profile("fedappeal")
# A shell starts its background jobs with SIGINT ignored, which processes that they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
