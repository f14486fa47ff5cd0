"""Machine-made faults in the spec and in the implementation: does anything notice them?

`cosmic-ray <https://cosmic-ray.readthedocs.io>`_ makes the faults (``mutants``). Each is tried in a forked process that
loads the faulty module in place of the real one (``trial``), on the gate's streams and the tests that reach the
changed line, the quickest first (``units``, ``reach``). ``survivors.toml`` says of each that lives on why it is no
fault at all, and ``report`` writes the result down.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ROOTS: Final = ("spec", "impl")
"""The source roots that faults are made in."""
