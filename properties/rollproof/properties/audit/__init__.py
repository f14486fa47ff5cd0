"""Auditing real runs: what a finalizer read, published and cleared, recorded group by group and judged by the spec.

``recorder`` wraps a data plane client and writes one JSON line per group, ``reading`` reads such lines back, ``judge``
compares each group with the contract's own outcome, and ``run`` does so over files of any length. Only the recorder
needs torch. ``docs/audit.md`` describes the format.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = "rollproof-audit-1"
"""The format's name and version; every line carries it."""

SHARDS_SUFFIX: Final = ".shards"
"""Large tensors of ``run.jsonl`` are in the folder ``run.jsonl.shards``, one safetensors file per group."""

GROUP: Final = "group"
ROLLOUT: Final = "rollout"
CUT: Final = "cut"
RESTORE: Final = "restore"
COMPLETION: Final = "completion"
LOST: Final = "lost"
"""The kinds of lines: a call of ``finalize_group``; one of ``finalize_rollout`` outside of a group; of a cut store, one
of ``cut`` or ``cut_all``, of ``restore``, and of ``complete`` or ``abandon``; a call that could not be recorded."""
