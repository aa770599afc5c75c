"""The seed of what slow tests draw: another one in every run, which the header of the run shows."""

import os
import random

VARIABLE = "GRISTMILL_TEST_SEED"

# In the environment, so that processes which run a part of the tests have the same one.
SEED = int(os.environ.setdefault(VARIABLE, str(random.randrange(2**32))))
