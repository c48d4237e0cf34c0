"""What all tests share: no deadlines on a busy machine, and one thread for small models."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
settings.register_profile("fedappeal", deadline=None)
settings.load_profile("fedappeal")
