"""Hypothesis properties that hold an implementation of the rollout contract against its spec.

The invariants themselves are in ``rollproof.spec.judge``, beside the contract. This root draws the requests, puts them
to an implementation, and shows where its answer breaks an invariant. Its rooms, in the order in which data flows; a
room imports only rooms above it, and a test holds this order:

- ``strategies``: draw requests: valid rollouts, rollouts with one broken rule, and the named streams of each area.
- ``adapters``: what can be checked: our implementation, any reassembler class, the spec itself.
- ``wire``: the same requests and answers over a pipe, for implementations in any language.
- ``peers``: public frameworks in environments of their own, each behind a pipe.
- ``nemo_gym``: one peer: its adapter, its declared deviations, and histories from its own capture.
- ``mutants``: deliberately wrong implementations, each with the invariant that must catch it.
- ``right``: correct implementations that do it otherwise, each of which every verdict must hold.
- ``gate``: run the streams against an implementation, and report the verdict.
- ``audit``: the verdict over groups that were recorded in production.
- ``machine``: a state machine over finalizers, with failures, crashes and recovery.
- ``fuzz``: longer runs than the gate's, guided by coverage, and hostile inputs with limits on time and memory.
- ``symbolic``: proofs about rules on scalars, over all paths instead of examples.
- ``vectors``: export test vectors to files, and verify them.
- ``evidence``: the generated pages: the rules, and the evidence for each.
- ``pytest_suite``: the gate as pytest tests.
- ``commands``: the command line, one module for each command of ``rollproof``.

Beside the rooms are modules that every room may use: ``errors``, ``processes`` and ``cluster``. ``cli`` starts the
commands.
"""
