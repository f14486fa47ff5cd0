"""The rollout contract on tensors: columns in, columns out, and the hash function as the only work per byte.

The chapters have the spec's names: ``digest``, ``records`` (reading a receipt), ``terminal``, ``staged`` (reading
staged rows), ``lineage``, ``rollout``, ``routes``, ``bundles``, ``spans``, ``media``, ``retained``, ``completion``,
``group``, ``metrics``. Around them are ``staging`` (writing and reading through a data plane), ``dataplane`` (what a
data plane is, and one in memory), ``patches`` and ``packed`` (from pixels to bundles, from bundles to rows), ``policy``
(deferred routes, executed), ``kernels`` (Triton), ``reassembler`` (the class that NeMo RL calls), ``actor`` (that class
on Ray), ``recovery`` and ``pool`` (groups whose finalizer died, and several finalizers). From ``rollproof.spec`` only
the vocabulary is imported: record classes, rejection codes, constants.
"""
