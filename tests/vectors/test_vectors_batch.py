import subprocess
import sys

import batch_cases


def test_with_jax():
    import jax

    assert jax.tree_util
    assert batch_cases.check() == 39


def test_without_jax():
    process = subprocess.run([sys.executable, batch_cases.__file__], capture_output=True, text=True)
    assert (process.stdout, process.returncode) == ("39\n", 0), process.stderr
