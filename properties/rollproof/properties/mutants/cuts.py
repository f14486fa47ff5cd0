"""Mutants of generation cuts (section 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import define, evolve

from rollproof.properties.mutants.mutant import Mutant, passing, patches
from rollproof.spec import cuts
from rollproof.spec.bundles import staged_media
from rollproof.spec.chunks import chunk_row, joined
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN, RESERVED_ROLLOUT_ID, ROUTE_SENTINEL
from rollproof.spec.cut_records import CutKey
from rollproof.spec.plane import Outage
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor


@define
class Around:
    """A data plane in front of another, for a worker that does not do what it should."""

    inner: Any
    swallows_failed_puts: bool = False
    clears_nothing: bool = False

    @property
    def rows(self) -> Any:
        """What is staged."""
        return self.inner.rows

    def put(self, partition: str, keys: Any, rows: Any) -> None:
        """Stage rows."""
        try:
            self.inner.put(partition, keys, rows)
        except Outage:
            if not self.swallows_failed_puts:
                raise

    def clear(self, partition: str, keys: Any) -> None:
        """Remove rows."""
        if not self.clears_nothing:
            self.inner.clear(partition, keys)


def over(**faults: bool) -> Any:
    """Let a function that takes a call, something, media, a plane and a partition have a plane with faults."""
    return lambda function: (
        lambda first, second, media, plane, partition: function(
            first, second, media, Around(plane, **faults), partition
        )
    )


def loosely_read(parse: Callable[[Any], CutKey]) -> Any:
    """Read the sequence as a number, however it is written."""

    def wrong(text: Any) -> CutKey:
        try:
            return parse(text)
        except ValueError:
            head, _, sequence = text.rpartition("/") if type(text) is str else ("", "", "")
            return evolve(parse(f"{head}/0"), sequence=int(sequence))

    return wrong


def older_form(parse: Callable[[Any], CutKey]) -> Any:
    """Read a key without a sequence as that of the first chunk, as before there were several."""

    def wrong(text: Any) -> CutKey:
        old = type(text) is str and text.startswith(RESERVED_ROLLOUT_ID) and text.count("/") == 3
        return parse(f"{text}/0" if old else text)

    return wrong


def forgetting(cut: Any) -> Any:
    """Empty the buffer before the put, and leave it so where that fails."""

    def wrong(generation: Any, order: Any, media: Any, plane: Any, partition: Any) -> Any:
        answer, after = cut(generation, order, media, plane, partition)
        failed = after is generation and plane.failing_put and generation.pending_ids
        return answer, evolve(after, pending_ids=(), pending_log_probs=()) if failed else after

    return wrong


def putting_again(cut: Any) -> Any:
    """Put the last chunk again where nothing is new."""

    def wrong(generation: Any, order: Any, media: Any, plane: Any, partition: Any) -> Any:
        if generation.chunks and not generation.pending_ids and not plane.failing_put:
            plane.put(
                partition.name, generation.keys[-1:], (cuts.staged(generation.chunks[-1], None, partition, None),)
            )
        return cut(generation, order, media, plane, partition)

    return wrong


def whole_prefix(next_chunk: Any) -> Any:
    """Stage everything generated so far with each cut, as if it were new."""

    def wrong(generation: Any, checkpoint: str, media: Any, partition: Any) -> Any:
        key, chunk, row = next_chunk(generation, checkpoint, media, partition)
        if generation.chunks:
            values = [value for one in generation.chunks for value in zip(*tokens_of(one), strict=True)]
            ids, log_probs = (
                column + new for column, new in zip(zip(*values, strict=True), tokens_of(chunk), strict=True)
            )
            version = generation.pending_version
            chunk = chunk_row(generation.call, 1, ids, log_probs, version, None)
            row = cuts.staged(chunk, None, partition, None)
        return key, chunk, row

    return wrong


def tokens_of(chunk: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what a chunk generated: ids and log-probs."""
    carry = chunk.token_mask_delta.count(0.0)
    return chunk.token_ids_delta[carry:], chunk.generation_log_probs_delta[carry:]


def any_limit(cut: Any) -> Any:
    """Take an unknown limit for that of the model."""
    return lambda generation, order, *rest: cut(
        generation, evolve(order, effective_output_limit=order.effective_output_limit or 4096), *rest
    )


def with_pixels(next_chunk: Any) -> Any:
    """Stage the pixels with every chunk."""

    def wrong(generation: Any, checkpoint: str, media: Any, partition: Any) -> Any:
        key, chunk, row = next_chunk(generation, checkpoint, media, partition)
        if media is None or partition.pixel_dtype is None:
            return key, chunk, row
        columns = staged_media(media.tensors, partition.pixel_dtype)
        return key, chunk, evolve(row, columns={**row.columns, **columns})

    return wrong


def ending(change: Callable[..., Any]) -> Any:
    """Change how a call is completed: ``change(complete, generation, call_id, media, plane, partition)``."""
    return lambda complete: lambda *arguments: change(complete, *arguments)


def cleared_first(complete: Any, generation: Any, call_id: str, media: Any, plane: Any, partition: Any) -> Any:
    """Clear the chunks, and then stage the final row."""
    failed = cuts.clear(plane, partition, generation.keys)
    return complete(evolve(generation, keys=()), call_id, media, plane, partition)[0], failed


def cleared_singly(complete: Any, generation: Any, call_id: str, media: Any, plane: Any, partition: Any) -> Any:
    """Clear the chunks one by one."""
    row, _ = complete(evolve(generation, keys=()), call_id, media, plane, partition)
    return row, sum(cuts.clear(plane, partition, (key,)) for key in generation.keys)


def without_log_probs(complete: Any, generation: Any, *rest: Any) -> Any:
    """Complete with a prefix whose log-probs nobody kept."""
    zeros = [evolve(one, generation_log_probs_delta=(0.0,) * one.delta_len) for one in generation.chunks]
    return complete(evolve(generation, chunks=tuple(zeros)), *rest)


def last_token_twice(complete: Any, generation: Any, *rest: Any) -> Any:
    """Generate the prefix's last token again, as an engine that is given one token less."""
    if not generation.chunks or not generation.pending_ids:
        return complete(generation, *rest)
    ids, log_probs = tokens_of(generation.chunks[-1])
    again = evolve(
        generation,
        pending_ids=(ids[-1], *generation.pending_ids),
        pending_log_probs=(log_probs[-1], *generation.pending_log_probs),
    )
    return complete(again, *rest)


def of_new_weights(complete: Any, generation: Any, *rest: Any) -> Any:
    """Let the final row count as of the weights under which it was completed."""
    newest = max([one.weight_version for one in generation.chunks] + [generation.pending_version])
    chunks = tuple(evolve(one, weight_version=newest) for one in generation.chunks)
    return complete(evolve(generation, chunks=chunks, pending_version=newest), *rest)


def uncounted(complete: Any, *arguments: Any) -> Any:
    """Say nothing of a clear that failed."""
    return complete(*arguments)[0], 0


def unchecked(_: Any) -> Any:
    """Check nothing."""
    return lambda *_: None


def restoring(change: Callable[[Any, Any, int], Any]) -> Any:
    """Change what is restored, given it, the acknowledgement and the worker's weight version."""
    return lambda restore: (
        lambda call, acknowledged, fresh, version, plane, partition: change(
            restore(call, acknowledged, fresh, version, plane, partition), acknowledged, version
        )
    )


def chunks_of_others(check: Any) -> Any:
    """Take a chunk behind any parent."""

    def wrong(call: Any, keys: Any, chunks: Any) -> None:
        mode = MODE_TEXT if call.parent_call_id is None else MODE_TOKEN_IN
        own = {"parent_call_id": call.parent_call_id, "mode": mode, "prev_len": len(call.before)}
        check(call, keys, [evolve(chunk, **own) for chunk in chunks])

    return wrong


def limit_first(read: Any) -> Any:
    """Look at the limit before anything else."""

    def wrong(acknowledged: Any, plane: Any, partition: Any) -> Any:
        if acknowledged.effective_output_limit < acknowledged.prefix_token_count:
            raise Rejected(Code.CUT_LIMIT_EXCEEDED)
        return read(acknowledged, plane, partition)

    return wrong


def as_any_row(read: Any) -> Any:
    """Report a chunk that is not there as any staged row."""

    def wrong(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Rejected as rejected:
            code = Code.MISSING_STAGING_ROW if rejected.code is Code.CUT_CHUNK_MISSING else rejected.code
            raise Rejected(code, rejected.detail) from None

    return wrong


def any_order(check: Any) -> Any:
    """Trust the acknowledged digest only for the first chunk."""
    return lambda call, chunks, acknowledged: check(call, chunks, joined(call, chunks).digest)


def together_observed(restored: Any) -> Any:
    """Put together what several prefills observed."""

    def wrong(routes: Tensor, start: int, end: int, prefills: Any) -> Tensor:
        seen = {position for first, last in prefills for position in range(first, last)}
        return routes if set(range(start, end)) <= seen else restored(routes, start, end, prefills)

    return wrong


def all_sentinel(restored: Any) -> Any:
    """Lose the whole call's routes with those of the prefix."""

    def wrong(routes: Tensor, start: int, end: int, prefills: Any) -> Tensor:
        if restored(routes, start, end, prefills) == routes:
            return routes
        return Tensor.of(routes.dtype, [ROUTE_SENTINEL] * routes.count, routes.shape)

    return wrong


def last_chunk_only(acknowledgement: Any) -> Any:
    """Acknowledge the last chunk's own digest."""
    return lambda generation, order: evolve(
        acknowledgement(generation, order), prefix_digest=generation.chunks[-1].digest
    )


def new_keys_only(acknowledgement: Any) -> Any:
    """Acknowledge what this cut staged, and not what earlier ones did."""
    return lambda generation, order: evolve(acknowledgement(generation, order), staging_keys=generation.keys[-1:])


ORIGIN: Final = "contract section 11"


def mutant(name: str, invariant: str, sentence: str, **replacements: Any) -> Mutant:
    """Return a mutant of section 11."""
    return Mutant(name, invariant, ORIGIN, sentence, patches(**replacements))


MUTANTS: Final = (
    mutant("cut-keys-without-sequence", "CUTS-1", "A key of the older form is read as that of the first chunk.",
           judge__oracle__parse_cut_key=older_form),
    mutant("cut-sequence-any-number", "CUTS-1", "A sequence with leading zeros, signs or other digits is read.",
           judge__oracle__parse_cut_key=loosely_read),
    mutant("cut-acknowledged-without-put", "CUTS-2", "A cut whose put failed is acknowledged.",
           judge__oracle__cut=over(swallows_failed_puts=True)),
    mutant("failed-cut-forgets-tokens", "CUTS-3", "Tokens of a cut whose put failed are in no later chunk.",
           judge__oracle__cut=forgetting),
    mutant("cut-acknowledges-new-keys-only", "CUTS-3", "An acknowledgement names the last chunk only.",
           cuts__acknowledgement=new_keys_only),
    mutant("cut-stages-everything-again", "CUTS-4", "Each cut stages the call from its beginning.",
           cuts__next_chunk=whole_prefix),
    mutant("cut-without-news-puts", "CUTS-4", "A cut without new tokens puts the last chunk again.",
           judge__oracle__cut=putting_again),
    mutant("failed-cut-leaves-rows", "CUTS-5", "The rows of a put that failed stay.",
           judge__oracle__cut=over(clears_nothing=True)),
    mutant("cut-inside-a-character", "CUTS-6", "A prefix that ends inside a multi-byte character is acknowledged.",
           cuts__ends_inside_character=lambda _: lambda _text: False),
    mutant("cut-where-text-is-broken", "CUTS-6", "Text that is no UTF-8 is taken for half a character.",
           cuts__ends_inside_character=lambda _: lambda text: text.decode("utf-8", "replace").endswith("\ufffd")),
    mutant("cut-without-limit", "CUTS-6", "A cut of a call without a known limit is acknowledged, with a default.",
           judge__oracle__cut=any_limit),
    mutant("finished-without-end", "CUTS-6", "A call that has not ended has a reason to have finished.",
           cuts__check_cut=passing("finish_reason")),
    mutant("prefix-digest-of-one-chunk", "CUTS-7", "The prefix digest is the last chunk's.",
           cuts__acknowledgement=last_chunk_only),
    mutant("cut-sequence-from-one", "CUTS-7", "Chunks are numbered from 1.",
           cuts__cut_key=lambda cut_key: lambda key: cut_key(evolve(key, sequence=key.sequence + 1))),
    mutant("chunks-cleared-first", "CUTS-8", "Chunks are cleared before the final row is put.",
           judge__oracle__complete=ending(cleared_first)),
    mutant("chunks-cleared-singly", "CUTS-8", "Chunks are cleared one by one.",
           judge__oracle__complete=ending(cleared_singly)),
    mutant("chunks-outlive-their-call", "CUTS-8", "Chunks stay after the call is completed.",
           judge__oracle__complete=over(clears_nothing=True)),
    mutant("failed-clear-uncounted", "CUTS-8", "A clear that failed is not counted.",
           judge__oracle__complete=ending(uncounted)),
    mutant("prefix-without-log-probs", "CUTS-9", "The final row has zeros for the prefix's log-probs.",
           judge__oracle__complete=ending(without_log_probs)),
    mutant("prefix-token-twice", "CUTS-9", "The tail repeats the prefix's last token.",
           judge__oracle__complete=ending(last_token_twice)),
    mutant("chunks-with-pixels", "CUTS-10", "Every chunk carries the pixels.", cuts__next_chunk=with_pixels),
    mutant("chunks-of-another-call", "CUTS-12", "Parent and position of chunks are not compared with the call's.",
           cut_restore__check_identity=chunks_of_others),
    mutant("restore-under-older-weights", "CUTS-11", "A worker restores what newer weights generated.",
           cut_restore__check_versions=unchecked),
    mutant("prefix-digest-unchecked", "CUTS-11", "Only the chunks' own digests are checked.",
           cut_restore__check_digests=any_order),
    mutant("restored-media-unchecked", "CUTS-11", "The fresh media are taken as they are.",
           cut_restore__restore=lambda _: lambda _row, fresh: fresh if fresh.spans or fresh.tensors else None),
    mutant("restore-looks-at-the-limit-first", "CUTS-12", "The limit is compared before the chunks are read.",
           cut_restore__read_chunks=limit_first),
    mutant("missing-chunk-as-any-row", "CUTS-12", "A chunk that is missing is reported as a missing staging row.",
           cut_restore__read_chunks=as_any_row),
    mutant("restored-without-log-probs", "CUTS-13", "What is restored has zeros for log-probs.",
           judge__oracle__restore_cut=restoring(
               lambda found, *_: evolve(found, log_probs=(0.0,) * len(found.token_ids)))),
    mutant("restored-with-the-whole-limit", "CUTS-14", "A restored call may generate the limit once more.",
           judge__oracle__restore_cut=restoring(
               lambda found, acknowledged, _: evolve(found, tokens_left=acknowledged.effective_output_limit))),
    mutant("restored-under-the-workers-weights", "CUTS-14", "A restored call counts as of the worker's weights.",
           judge__oracle__restore_cut=restoring(
               lambda found, _, version: evolve(found, weight_version=version))),
    mutant("restored-without-media", "CUTS-15", "A restored call goes on without its media.",
           judge__oracle__restore_cut=restoring(lambda found, *_: evolve(found, media=None))),
    mutant("restored-routes-from-pieces", "CUTS-16", "Routes of several prefills are put together.",
           judge__oracle__restored_routes=together_observed),
    mutant("restored-routes-all-lost", "CUTS-16", "Prompt and tail lose their routes with the prefix.",
           judge__oracle__restored_routes=all_sentinel),
    mutant("restored-routes-kept", "CUTS-16", "A restored prefix keeps routes that no prefill observed.",
           judge__oracle__restored_routes=lambda _: lambda routes, *_: routes),
    mutant("completed-under-new-weights", "CUTS-17", "The final row counts as of the newest weights.",
           judge__oracle__complete=ending(of_new_weights)),
)  # fmt: skip
