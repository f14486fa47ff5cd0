"""The invariants, one module per area; ``rollproof.spec.invariants`` is their catalogue."""
