"""Rules on scalars, for CrossHair to prove over all paths rather than to try on examples: ``rollproof prove``."""
