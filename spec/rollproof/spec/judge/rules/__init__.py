"""The invariants, one module per area; ``rollproof.spec.judge.catalogue`` is their catalogue."""
