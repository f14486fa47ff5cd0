"""Mutants that violate one of the later numbered decisions (docs/decisions.md)."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.known_group import uncounted
from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import FINISH_REASON, GROUP_KEY, IMAGE
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import read_metadata
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.receipt import manifest_rows, parse_receipt
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_identifier


def any_fallback(argument_error: Any) -> Any:
    """The fallback weight version is not looked at."""
    return lambda request: argument_error(evolve(request, fallback_weight_version=0))


def dropped_unless_routed(drop: Any) -> Any:
    """A group without accepted routes is dropped, whether or not a row of it is valid."""

    def wrong(config: Any, request: Any, plane: Any, outcomes: Sequence[RolloutOutcome]) -> Any:
        invalid = [evolve(outcome, rollout=evolve(outcome.rollout, valid=False)) for outcome in outcomes]
        return drop(config, request, plane, invalid)

    return wrong


def only_of_parsed(owned_keys: Any) -> Any:
    """A receipt that does not parse owns nothing."""

    def wrong(rollout_id: str, receipt: Any) -> tuple[str, ...]:
        try:
            parse_receipt(receipt)
        except Rejected:
            return ()
        keys: tuple[str, ...] = owned_keys(rollout_id, receipt)
        return keys

    return wrong


def entries_unchecked(_: Any) -> Any:
    """Every key in a manifest that begins with the rollout's id and a slash is its own."""

    def wrong(rollout_id: str, receipt: Any) -> list[str]:
        keys = [str(row.get("staging_key")) for row in manifest_rows(receipt)]
        return [key for key in keys if is_identifier(key) and key.startswith(f"{rollout_id}/")]

    return wrong


def unless_routed(read_items: Any) -> Any:
    """Media of a call with routes are not compared with its tokens."""
    return lambda staged: None if staged.routed_len else read_items(staged)


def factor_of_each(check_embeddings: Any) -> Any:
    """Check every image by itself."""
    return lambda item, patch, _factor: check_embeddings(item, patch, None)


def factor_of_videos(check_embeddings: Any) -> Any:
    """Videos are images of several frames: merged by one number too."""

    def wrong(item: Any, patch: int, factor: int | None) -> Any:
        return check_embeddings(evolve(item, modality=IMAGE), patch, factor)

    return wrong


def square_factors(check_embeddings: Any) -> Any:
    """Patches are merged by squares only."""

    def wrong(item: Any, patch: int, factor: int | None) -> Any:
        found = check_embeddings(item, patch, factor)
        if found is not None and isqrt(found) ** 2 != found:
            raise ValueError(f"a factor of {found}")
        return found

    return wrong


def anything_but_stop(says_length: Any) -> Any:
    """Every reason but "stop" is taken for a cut."""

    def wrong(staged: Any) -> bool:
        try:
            extras = read_metadata(staged.extras_metadata_json) or {}
        except ValueError:
            return False
        return bool(says_length(staged)) or extras.get(FINISH_REASON, "stop") != "stop"

    return wrong


def reason_unproven(says_length: Any) -> Any:
    """The last call's finish reason is read from its extras, whatever it committed to."""
    return lambda staged: says_length(evolve(staged, call=evolve(staged.call, extras_digest=digest_of(staged))))


def digest_of(staged: Any) -> str:
    """Return what the extras that were read digest to."""
    try:
        return extras_digest(read_metadata(staged.extras_metadata_json))
    except ValueError:
        return ""


def key_of_the_prompt(build_rows: Any) -> Any:
    """The group key is made of the prompt."""

    def wrong(config: Any, *rest: Any) -> Any:
        return tuple(
            evolve(row, columns={**row.columns, GROUP_KEY: row.columns["prompt_ids_for_adv"]})
            if GROUP_KEY in row.columns
            else row
            for row in build_rows(config, *rest)
        )

    return wrong


def key_of_valid_rows(build_rows: Any) -> Any:
    """A placeholder belongs to no group."""

    def wrong(config: Any, request: Any, outcomes: Any, dims: Any) -> Any:
        return tuple(
            row
            if outcome.rollout.valid or GROUP_KEY not in row.columns
            else evolve(row, columns={**row.columns, GROUP_KEY: Tensor.of("int64", (0,) * 8)})
            for row, outcome in zip(build_rows(config, request, outcomes, dims), outcomes, strict=True)
        )

    return wrong


def last_version_only(newer_versions: Any) -> Any:
    """Only the terminal call's weight version is compared with the current one."""

    def wrong(outcome: Any, current: int | None) -> Any:
        terminal = outcome.row.model_call_ids[-1]
        return [found for found in newer_versions(outcome, current) if found[1] == terminal]

    return wrong


MUTANTS: Final = (
    *(
        Mutant(
            f"{name.replace('_', '-')}-unnoticed",
            "GROUP-13",
            "contract section 8",
            f"The advisory {name} is always 0.",
            uncounted(name),
        )
        for name in (
            *("zero_logprob_tokens", "implausible_logprobs", "untrained_generated_tokens"),
            "unpredicted_first_token",
        )
    ),
    Mutant(
        "implausible-in-float64",
        "GROUP-13",
        "contract section 8",
        "A log-probability is below a bound that it equals: one is float32, the other is not.",
        patches(advisories__least_plausible=lambda _: lambda config: config.least_plausible_logprob),
    ),
    Mutant(
        "stop-token-lost-unnoticed",
        "GROUP-13",
        "contract section 8",
        "A stop token that comes back in the next prompt instead of being trained is not counted.",
        patches(advisories__untrained_stops=lambda _: lambda _config, _row: ()),
    ),
    Mutant(
        "newer-version-of-the-last-call",
        "GROUP-13",
        "contract section 8",
        "A weight version that does not exist yet is only noticed in the terminal call.",
        patches(advisories__newer_versions=last_version_only),
    ),
    Mutant(
        "stray-placeholders-uncounted",
        "MEDIA-11",
        "contract section 8",
        "A prompt that holds placeholders without an image goes unnoticed.",
        patches(media__stray_placeholders=lambda _: lambda _row, _chain: ()),
    ),
    Mutant(
        "group-key-of-the-prompt",
        "GROUP-19",
        "NVIDIA-NeMo/RL 3882",
        "Two groups with one prompt have one key, and so one baseline.",
        patches(group__build_rows=key_of_the_prompt),
    ),
    Mutant(
        "group-key-of-valid-rows",
        "GROUP-19",
        "contract decision D39",
        "Placeholders of all groups share a key: they are a group of their own.",
        patches(group__build_rows=key_of_valid_rows),
    ),
    Mutant(
        "mixed-prompts-uncounted",
        "GROUP-13",
        "contract decision D39",
        "Nobody learns that a group holds different problems.",
        patches(advisories__other_prompts=lambda _: lambda _valid: ()),
    ),
    Mutant(
        "finish-reason-ignored",
        "GROUP-14",
        "contract decision D38",
        "A row that the engine cut at its own limit is trained as if it had ended.",
        patches(rollout__says_length=lambda _: lambda _staged: False),
    ),
    Mutant(
        "finish-reason-of-any-spelling",
        "GROUP-14",
        "contract decision D38",
        "Anything but a stop is taken for a cut: null, a list, another spelling.",
        patches(rollout__says_length=anything_but_stop),
    ),
    Mutant(
        "finish-reason-forged",
        "GROUP-14",
        "contract decision D38",
        "The finish reason is taken from extras that the call did not commit to.",
        patches(rollout__says_length=reason_unproven),
    ),
    Mutant(
        "finish-reason-of-routed-calls-ignored",
        "ROUTE-18",
        "contract decision D38",
        "A call with routes is never taken for cut, because nobody compared its extras.",
        patches(rollout__says_length=lambda says: lambda staged: not staged.routed_len and says(staged)),
    ),
    Mutant(
        "embeddings-uncounted",
        "MEDIA-7",
        "contract decision D37",
        "One image has 4 placeholders, and another of its size 16; a single patch has 64.",
        patches(media__check_merging=lambda _: lambda *_arguments: None),
    ),
    Mutant(
        "merge-factor-of-each-image",
        "MEDIA-7",
        "contract decision D37",
        "Each image of a row may merge its patches by another number, and by another than the model's.",
        patches(media__check_embeddings=factor_of_each),
    ),
    Mutant(
        "merge-factor-of-videos",
        "MEDIA-7",
        "contract decision D37",
        "A video of an odd number of frames, merged in pairs, is rejected.",
        patches(media__check_embeddings=factor_of_videos),
    ),
    Mutant(
        "merge-factor-square",
        "MEDIA-7",
        "contract decision D37",
        "An engine that merges two patches at a time loses all its rows.",
        patches(media__check_embeddings=square_factors),
    ),
    Mutant(
        "media-extras-uncommitted",
        "MEDIA-7",
        "contract decision D36",
        "media_present forged false and the metadata replaced by null give a valid row that lost its image.",
        patches(media__check_committed=lambda _: lambda _staged: None),
    ),
    Mutant(
        "media-of-routed-calls-unchecked",
        "MEDIA-12",
        "contract decision D35",
        "With deferred router replay a dropped image or a sampled image token is accepted.",
        patches(media__read_items=unless_routed),
    ),
    Mutant(
        "unchecked-media-uncounted",
        "MEDIA-11",
        "contract decision D35",
        "Nobody learns how many calls' media were taken on trust.",
        patches(media__unchecked_calls=lambda _: lambda _config, _chain: ()),
    ),
    Mutant(
        "unreadable-receipt-leaks",
        "GROUP-18",
        "NVIDIA-NeMo/RL 4129",
        "A receipt with one unknown field is rejected, and all that its calls staged stays for ever.",
        patches(rollout__owned_keys=only_of_parsed),
    ),
    Mutant(
        "unreadable-receipt-clears-by-prefix",
        "GROUP-4",
        "contract decision D34",
        "An entry of a receipt that does not parse gets a key cleared which is not made of its call id.",
        patches(rollout__own_keys_listed=entries_unchecked),
    ),
    Mutant(
        "fallback-version-unchecked",
        "GROUP-7",
        "contract decision D40",
        "A fallback weight version of None, True or -1 becomes the tag of every placeholder.",
        patches(group__argument_error=any_fallback),
    ),
    Mutant(
        "valid-rows-dropped-without-routes",
        "ROUTE-14",
        "contract decision D40",
        "Valid rows are dropped and their staging cleared because no accepted rollout has routes.",
        patches(group__drop=dropped_unless_routed),
    ),
)
