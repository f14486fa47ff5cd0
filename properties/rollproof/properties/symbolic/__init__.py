"""Rules on scalars that CrossHair proves over all paths, rather than on examples: ``rollproof prove``."""
