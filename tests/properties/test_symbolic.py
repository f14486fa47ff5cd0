"""The integer rules are confirmed over all paths, and a wrong one is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rollproof.properties.symbolic import routes

SOURCE = Path(routes.__file__).read_text(encoding="utf-8")


def crosshair(target):
    options = ["--analysis_kind=PEP316", "--report_all", "--per_condition_timeout=60"]
    command = [sys.executable, "-m", "crosshair", "check", *options, target]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def test_every_postcondition_is_confirmed():
    lines = crosshair(routes.__name__)
    stated = sum(line.strip().startswith("post:") for line in SOURCE.splitlines())
    assert len(lines) == stated
    assert [line for line in lines if not line.endswith("Confirmed over all paths.")] == []


def test_a_classification_that_reads_past_the_fragment_is_refuted(tmp_path):
    wrong = SOURCE.replace(
        "    return sentinel_and_used(carry_len, generation_len, staged_route_len)\n",
        "    leading, first, used = sentinel_and_used(carry_len, generation_len, staged_route_len)\n"
        "    return leading, first + (1 if used and first else 0), used\n",
    )
    assert wrong != SOURCE
    path = tmp_path / "wrong.py"
    path.write_text(wrong, encoding="utf-8")
    assert any(re.search(r"error: false when calling used_rows_lie_inside", line) for line in crosshair(str(path)))
