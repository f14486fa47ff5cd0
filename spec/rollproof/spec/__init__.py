"""The rules for rebuilding training rows from rollouts, as readable, executable Python.

Read the modules in this order; everything outside ``judge`` is the contract.

The vocabulary: ``constants`` (names and numbers), ``tensor`` (a tensor as dtype, shape and bytes), ``rejections``
(every refusal), ``shadowed`` (which of them an earlier one hides), ``config`` and ``records`` (the values that chapters
hand to each other), ``values`` (section 1: what each may be).

Sections 2 and 3, one call and one receipt: ``digest``, ``receipt``, ``terminal``. Section 9, a staged row: ``staged``.

Section 4, a verified chain: ``lineage``. Section 6, its routes: ``envelope`` and ``extras`` (how they are staged, and
when they are trusted), ``plan``, ``assembly``, ``routes``, ``replay``; section 10, the one token that a call has no
route for: ``route_boundary``. Section 7, its media: ``bundles``, ``spans``, ``media``; across a generation cut:
``blake3``, ``retained``, ``completion``. Section 12, what else the sampler said: ``sampler``.

Section 11, a call that is cut and taken up again: ``cut_records``, ``chunks`` (keys, rows, digests), ``cuts`` (what is
put and what is promised), ``cut_restore``; they write through ``plane``, which comes next.

Sections 5 and 8, from receipts to published rows: ``plane`` (the data plane), ``outcomes``, ``rollout``, ``metrics``,
``advisories``, ``rows``, ``group``.

Section 14, what holds for every framework, with or without receipts: ``portable`` (calls, rows, policies), ``merge``,
``align``, ``advantage``, ``media_rows``.

``judge`` sends requests to implementations and judges the answers; no chapter imports it: ``judge.views`` and
``judge.staging`` (how tensors and a staging partition are handed over), ``judge.area``, ``judge.requests``,
``judge.portable`` and ``judge.cuts`` (what is asked), ``judge.oracle`` (the contract's own answers), ``judge.latitude``
(what answers may differ in), ``judge.contexts`` (what a row's position is), ``judge.invariant``, ``judge.rules`` and
``judge.catalogue``.

Nothing here performs I/O, caches, or optimises: the reader is someone who re-implements it in another language.
"""
