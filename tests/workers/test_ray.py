"""Workers on Ray: ``ray_checks.py`` says what holds of them, on a cluster of two nodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusing import assert_raises

from gristmill import MapDataset, RayOptions

CHECKS = Path(__file__).with_name("ray_checks.py")
SUPPORT = CHECKS.parents[1] / "support"


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    it = iter(MapDataset.range(4).to_iter_dataset().mp_prefetch(RayOptions(1)))
    assert_raises(ImportError, r"RayOptions needs the package ray, .*gristmill\[ray\]", next, it)


@pytest.mark.timeout(500)
def test_on_two_nodes(request):
    """One cluster for all checks; a run without slow tests does without the slow ones."""
    pytest.importorskip("ray", reason="Ray is not installed (the extra ray)")
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-W",
        "ignore",
        "--timeout",
        "420",
    ]
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(CHECKS),
        *options,
        "-m",
        request.config.option.markexpr,
    ]
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=420, env=environment, check=False
    )
    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]
