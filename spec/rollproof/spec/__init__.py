"""What must hold when training rows are rebuilt from rollouts, as readable, executable Python.

Read the chapters in the contract's order: ``constants`` and ``records`` (the vocabulary), ``rejections`` (every
refusal), ``tensor`` and ``digest`` (section 2), ``receipt`` and ``staged`` (sections 3 and 9), ``terminal``
(section 3), ``lineage`` (section 4), ``rollout`` (section 5), ``routes`` (section 6), ``bundles``, ``spans``,
``media``, ``retained`` and ``completion`` (section 7), ``group`` (section 8) and ``invariants`` (the catalogue that
everything else reports against).

Nothing here performs I/O, caches, or optimises: the reader is someone who re-implements it in another language.
"""
