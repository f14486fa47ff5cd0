"""Machine-made faults in the spec and in the implementation: does anything notice them?

`cosmic-ray <https://cosmic-ray.readthedocs.io>`_ makes the faults (``mutants``). Each is tried in a forked process that
loads the faulty module in place of the real one (``trial``), on the gate's streams and the tests that reach the changed
line, the quickest first (``units``, ``reach``). ``survivors.toml`` says of each survivor why it is not a fault, and
``report`` writes the result.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROOTS: Final = ("spec", "impl")
"""The source roots that faults are made in."""
