"""The example with a killed worker: a call that was restored trains as the one that nobody disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("ray")

EXAMPLE = Path(__file__).parents[2] / "examples" / "cuts" / "killed_worker.py"


@pytest.mark.deep
def test_a_killed_worker_costs_no_token(tmp_path):
    ran = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "the row equals the undisturbed one" in ran.stdout
    assert (tmp_path / "run.jsonl").stat().st_size > 0
