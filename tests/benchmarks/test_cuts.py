"""The measurement of generation cuts at a tiny size: a cut costs what is new."""

from __future__ import annotations

from benchmarks import cuts


def test_cuts_write_each_token_once():
    (table,) = cuts.main(prompt=4, generated=64, cuts=(1, 4, 16))
    written = [row[1] for row in table.rows]
    apart = [(after - before) / rows for before, after, rows in zip(written, written[1:], (3, 12), strict=False)]
    assert apart[0] == apart[1] < 600
    whole_prefixes = [row[2] for row in table.rows]
    assert whole_prefixes[2] > 8 * whole_prefixes[0]
