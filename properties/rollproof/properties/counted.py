"""What the streams of the gate ask in profile ci with seed 0. Written by ``make docs``, read by ``counting``.

Per stream: area and name, then how many requests of each kind, then after ">" how often each code is the answer.
"""

from __future__ import annotations

from typing import Final

COUNTED: Final = """
digest golden = CallDigest 1, ExtrasDigest 1
digest valid:tokens = ChainDigest 35, PrefixDigest 40
digest valid:extras = ExtrasDigest 75
digest valid:calls = CallDigest 75
digest refused:tokens = ChainDigest 35, PrefixDigest 40
digest refused:extras = ExtrasDigest 38
digest refused:calls = CallDigest 75
receipt valid = ParseReceipt 150
receipt valid:failed = ParseReceipt 75
receipt break:receipt:invalid_receipt = ParseReceipt 25 > invalid_receipt 25
receipt break:all:invalid_receipt = ParseReceipt 150 > invalid_receipt 150
receipt break:types = ParseReceipt 75 > invalid_receipt 75
receipt hostile = ParseReceipt 300 > invalid_receipt 281
receipt hostile:text = ParseReceipt 75 > invalid_receipt 60
receipt hostile:values = ParseReceipt 75 > invalid_receipt 75
terminal valid = SelectTerminal 150
terminal valid:captured = SelectTerminal 75
terminal broken = SelectTerminal 150
lineage valid = Linearize 150
lineage valid:long = Linearize 15
lineage valid:odd = Linearize 75
lineage break:rebuild:unsupported_schema = Linearize 25 > unsupported_schema 25
lineage break:rebuild:unsupported_digest = Linearize 25 > unsupported_digest 25
lineage break:rebuild:unsupported_extras_digest = Linearize 25 > unsupported_extras_digest 25
lineage break:rebuild:rollout_failed = Linearize 25 > rollout_failed 25
lineage break:rebuild:capture_poisoned = Linearize 25 > capture_poisoned 25
lineage break:rebuild:empty_manifest = Linearize 25 > empty_manifest 25
lineage break:rebuild:duplicate_manifest_row = Linearize 25 > duplicate_manifest_row 25
lineage break:rebuild:duplicate_staging_key = Linearize 25 > duplicate_staging_key 25
lineage break:rebuild:row_count_mismatch = Linearize 25 > row_count_mismatch 25
lineage break:rebuild:duplicate_snapshot = Linearize 25 > duplicate_snapshot 25
lineage break:rebuild:snapshot_identity_mismatch = Linearize 25 > snapshot_identity_mismatch 25
lineage break:rebuild:snapshot_order_mismatch = Linearize 25 > snapshot_order_mismatch 25
lineage break:rebuild:wrong_rollout = Linearize 25 > wrong_rollout 25
lineage break:rebuild:wrong_parent_call_id = Linearize 25 > wrong_parent_call_id 25
lineage break:rebuild:wrong_mode = Linearize 25 > wrong_mode 25
lineage break:rebuild:wrong_prev_len = Linearize 25 > wrong_prev_len 25
lineage break:rebuild:wrong_delta_len = Linearize 25 > wrong_delta_len 25
lineage break:rebuild:wrong_cum_len = Linearize 25 > wrong_cum_len 25
lineage break:rebuild:wrong_weight_version = Linearize 25 > wrong_weight_version 25
lineage break:rebuild:wrong_digest = Linearize 25 > wrong_digest 25
lineage break:rebuild:wrong_extras_digest = Linearize 25 > wrong_extras_digest 25
lineage break:rebuild:wrong_chain_hash = Linearize 25 > wrong_chain_hash 25
lineage break:rebuild:wrong_cumulative_hash = Linearize 25 > wrong_cumulative_hash 25
lineage break:rebuild:wrong_schema_version = Linearize 25 > wrong_schema_version 25
lineage break:rebuild:wrong_digest_version = Linearize 25 > wrong_digest_version 25
lineage break:rebuild:wrong_extras_digest_version = Linearize 25 > wrong_extras_digest_version 25
lineage break:rebuild:invalid_snapshot = Linearize 25 > invalid_snapshot 25
lineage break:rebuild:corrupt_digest = Linearize 25 > corrupt_digest 25
lineage break:rebuild:missing_parent = Linearize 25 > missing_parent 25
lineage break:rebuild:parent_length_mismatch = Linearize 25 > parent_length_mismatch 25
lineage break:rebuild:lineage_cycle = Linearize 25 > lineage_cycle 25
lineage break:rebuild:missing_terminal = Linearize 25 > missing_terminal 25
lineage break:rebuild:chain_hash_mismatch = Linearize 25 > chain_hash_mismatch 25
lineage break:rebuild:invalid_mask_order = Linearize 25 > invalid_mask_order 25
lineage break:rebuild:empty_generation = Linearize 25 > empty_generation 25
lineage break:rebuild:cumulative_hash_mismatch = Linearize 25 > cumulative_hash_mismatch 25
lineage break:all:invalid_snapshot = Linearize 150 > invalid_snapshot 150
lineage break:two = Linearize 225 > capture_poisoned 5, corrupt_digest 5, duplicate_manifest_row 9,
    duplicate_staging_key 7, empty_manifest 3, invalid_mask_order 6, invalid_snapshot 16, missing_parent 7,
    parent_length_mismatch 9, rollout_failed 15, row_count_mismatch 24, snapshot_identity_mismatch 3,
    snapshot_order_mismatch 3, unsupported_digest 21, unsupported_extras_digest 20, unsupported_schema 13,
    wrong_chain_hash 6, wrong_delta_len 8, wrong_digest 8, wrong_mode 11, wrong_rollout 13, wrong_schema_version 13
lineage growth = LinearizeGrowth 1
lineage captured = Linearize 15
rollout valid = FinalizeRollout 150
rollout valid:odd = FinalizeRollout 75
rollout break:receipt:missing_receipt = FinalizeRollout 25 > missing_receipt 25
rollout break:receipt:invalid_receipt = FinalizeRollout 25 > invalid_receipt 25
rollout break:rollout:identity_mismatch = FinalizeRollout 25 > identity_mismatch 25
rollout break:rollout:rollout_failed = FinalizeRollout 25 > rollout_failed 25
rollout break:rollout:capture_poisoned = FinalizeRollout 25 > capture_poisoned 25
rollout break:rollout:duplicate_staging_key = FinalizeRollout 25 > duplicate_staging_key 25
rollout break:rollout:missing_staging_row = FinalizeRollout 25 > missing_staging_row 25
rollout break:rollout:invalid_staging_row = FinalizeRollout 25 > invalid_staging_row 25
rollout break:rollout:staging_key_mismatch = FinalizeRollout 25 > staging_key_mismatch 25
rollout break:rollout:call_id_mismatch = FinalizeRollout 25 > call_id_mismatch 25
rollout break:reward:invalid_reward = FinalizeRollout 25 > invalid_reward 25
rollout break:rebuild:wrong_rollout = FinalizeRollout 25 > rebuild_failed:wrong_rollout 25
rollout break:rebuild:wrong_parent_call_id = FinalizeRollout 25 > rebuild_failed:wrong_parent_call_id 25
rollout break:rebuild:wrong_prev_len = FinalizeRollout 25 > rebuild_failed:wrong_prev_len 25
rollout break:rebuild:wrong_delta_len = FinalizeRollout 25 > rebuild_failed:wrong_delta_len 25
rollout break:rebuild:wrong_weight_version = FinalizeRollout 25 > rebuild_failed:wrong_weight_version 25
rollout break:rebuild:wrong_digest = FinalizeRollout 25 > rebuild_failed:wrong_digest 25
rollout break:rebuild:wrong_extras_digest = FinalizeRollout 25 > rebuild_failed:wrong_extras_digest 25
rollout break:rebuild:wrong_chain_hash = FinalizeRollout 25 > rebuild_failed:wrong_chain_hash 25
rollout break:rebuild:wrong_cumulative_hash = FinalizeRollout 25 > rebuild_failed:wrong_cumulative_hash 25
rollout break:rebuild:corrupt_digest = FinalizeRollout 25 > rebuild_failed:corrupt_digest 25
rollout break:rebuild:missing_parent = FinalizeRollout 25 > rebuild_failed:missing_parent 25
rollout break:rebuild:parent_length_mismatch = FinalizeRollout 25 > rebuild_failed:parent_length_mismatch 25
rollout break:rebuild:lineage_cycle = FinalizeRollout 25 > rebuild_failed:lineage_cycle 25
rollout break:rebuild:chain_hash_mismatch = FinalizeRollout 25 > rebuild_failed:chain_hash_mismatch 25
rollout break:rebuild:invalid_mask_order = FinalizeRollout 25 > rebuild_failed:invalid_mask_order 25
rollout break:rebuild:empty_generation = FinalizeRollout 25 > rebuild_failed:empty_generation 25
rollout break:rebuild:cumulative_hash_mismatch = FinalizeRollout 25 > rebuild_failed:cumulative_hash_mismatch 25
rollout break:all:invalid_staging_row = FinalizeRollout 225 > invalid_staging_row 225
rollout break:two = FinalizeRollout 150 > capture_poisoned 9, duplicate_staging_key 3, identity_mismatch 2,
    invalid_receipt 23, invalid_staging_row 1, missing_staging_row 28, rebuild_failed:corrupt_digest 4,
    rebuild_failed:empty_generation 1, rebuild_failed:missing_parent 2, rebuild_failed:wrong_chain_hash 12,
    rebuild_failed:wrong_digest 4, rebuild_failed:wrong_extras_digest 9, rebuild_failed:wrong_parent_call_id 3,
    rebuild_failed:wrong_prev_len 1, rebuild_failed:wrong_rollout 26, rebuild_failed:wrong_weight_version 3,
    rollout_failed 7, staging_key_mismatch 12
rollout outage = FinalizeRollout 22 > missing_staging_row 6
rollout hostile:receipts = FinalizeRollout 225 > identity_mismatch 1, invalid_receipt 207, invalid_reward 1,
    missing_staging_row 7, rebuild_failed:missing_parent 7
rollout hostile:rows = FinalizeRollout 112 > invalid_staging_row 112
rollout captured = FinalizeRollout 38 > rollout_failed 4
group valid = FinalizeGroups 75
group mixed = FinalizeGroups 112
group faults = FinalizeGroups 52
group several = FinalizeGroups 45
group hostile = FinalizeGroups 52
group caller = FinalizeGroups 38
routes envelopes = DecodeRoutes 75
routes broken envelopes = DecodeRoutes 150 > invalid_route_envelope 150
routes tensors = EncodeRoutes 75 > invalid_route_envelope 49
routes spans = ClassifySpan 150
routes plans = DecodePlan 34, EncodePlan 41
routes broken plans = DecodePlan 150 > invalid_route_plan 150
routes assemblies = ExecutePlan 150
routes break:assembly:canonical_length_mismatch = ExecutePlan 25 > canonical_length_mismatch 25
routes break:assembly:missing_fragment = ExecutePlan 25 > missing_fragment 25
routes break:assembly:fragment_integrity = ExecutePlan 25 > fragment_integrity 25
routes break:assembly:fragment_rank = ExecutePlan 25 > fragment_rank 25
routes break:assembly:fragment_length = ExecutePlan 25 > fragment_length 25
routes break:assembly:fragment_model_shape = ExecutePlan 25 > fragment_model_shape 25
routes break:assembly:fragment_value_range = ExecutePlan 25 > fragment_value_range 25
routes break:assembly:fragment_partial_sentinel = ExecutePlan 25 > fragment_partial_sentinel 25
routes break:assembly:fragment_duplicate_expert = ExecutePlan 25 > fragment_duplicate_expert 25
routes direct rollouts = FinalizeRollout 75
routes direct histories = FinalizeRollout 75
routes direct groups = FinalizeGroups 38
routes deferred rollouts = FinalizeRollout 75
routes deferred histories = FinalizeRollout 75
routes deferred groups = FinalizeGroups 38
routes break:routes:routed_len_mismatch = FinalizeRollout 25 > routed_len_mismatch 25
routes break:routes:unsupported_route_boundary = FinalizeRollout 25 > unsupported_route_boundary 25
routes break:routes:route_assembly:missing_fragment = FinalizeRollout 25 > route_assembly:missing_fragment 25
routes break:routes:route_assembly:fragment_integrity = FinalizeRollout 25 > route_assembly:fragment_integrity 25
routes break:routes:route_assembly:fragment_integrity: = FinalizeRollout 25 > route_assembly:fragment_integrity 25
routes break:routes:route_assembly:fragment_rank = FinalizeRollout 25 > route_assembly:fragment_rank 25
routes break:routes:route_assembly:fragment_length = FinalizeRollout 25 > route_assembly:fragment_length 25
routes break:routes:route_assembly:fragment_model_shape = FinalizeRollout 25 > route_assembly:fragment_model_shape 25
routes break:routes:route_assembly:fragment_value_range = FinalizeRollout 25 > route_assembly:fragment_value_range 25
routes break:routes:route_assembly:fragment_partial_sentinel = FinalizeRollout 25 >
    route_assembly:fragment_partial_sentinel 25
routes break:routes:route_assembly:fragment_duplicate_expert = FinalizeRollout 25 >
    route_assembly:fragment_duplicate_expert 25
routes replayed groups = ReplayGroup 38
media chains = ChainMedia 75 > media_chain_incompatible 14
media broken chains = ChainMedia 150 > invalid_media_columns 150
media wrapping sums = ChainMedia 1 > invalid_media_columns 1
media staged = StageMedia 75
media rollouts = FinalizeRollout 75
media text rollouts = FinalizeRollout 19
media rejected earlier = FinalizeRollout 38
media outages = FinalizeRollout 19
media unverifiable extras = FinalizeRollout 38
media direct routes = FinalizeRollout 19
media direct routes, broken = FinalizeRollout 19 > media_placeholder_mismatch 19
media deferred routes = FinalizeRollout 19
media deferred routes, broken = FinalizeRollout 19 > media_placeholder_mismatch 11
media unreplayed routes = FinalizeRollout 19
media unreplayed routes, broken = FinalizeRollout 19 > media_placeholder_mismatch 11
media break:media:media_chain_incompatible = FinalizeRollout 25 > media_chain_incompatible 25
media break:media:invalid_media_columns = FinalizeRollout 25 > invalid_media_columns 25
media break:media:media_placeholder_mismatch = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:expanded_twice = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:truncated = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:overwritten_token = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:generated_placeholder = FinalizeRollout 25 > media_placeholder_mismatch
    25
media break:media:media_placeholder_mismatch:generated_carry = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:lost_pixels = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:lost_spans = FinalizeRollout 25 > media_placeholder_mismatch 25
media break:media:media_placeholder_mismatch:swapped_frames = FinalizeRollout 25 > media_placeholder_mismatch 25
media placeholders = FinalizeRollout 56 > media_placeholder_mismatch 56
media groups = FinalizeGroups 38 > media_group_incompatible 3
media break:media:media_group_incompatible = FinalizeGroups 25 > media_group_incompatible 25
retained hard pair: framing = SameMedia 1
retained hard pair: null = SameMedia 1
retained hard pair: 0-dimensional = SameMedia 1
retained hard pair: conjugated = SameMedia 1
retained hard pair: negated = SameMedia 1
retained hard pair: quantization = SameMedia 1 > media_capture_rejected 1
retained hard pair: name that is no text = SameMedia 1 > media_capture_rejected 1
retained hard pair: negative zero = SameMedia 1
retained hard pair: promotion = SameMedia 1
retained hard pair: 70000 and 80000, infinite in float16 = SameMedia 1
retained hard pair: borders = SameMedia 1
retained hard pair: NaN pixels = SameMedia 1
retained hard pair: three of two bytes = SameMedia 1
retained hard pair: one strided element = SameMedia 1
retained hard pair: dimensions = SameMedia 1
retained hard pair: dtype without a name = SameMedia 1 > media_capture_rejected 1
retained hard pair: null entry = SameMedia 1 > media_capture_rejected 1
retained hard pair: frame counts = SameMedia 1
retained digests = MediaDigest 150
retained valueless = MediaDigest 25 > media_capture_rejected 25
retained valueless pairs = SameMedia 25 > media_capture_rejected 25
retained equal pairs = SameMedia 150
retained different pairs = SameMedia 225
retained cuts = CutGeneration 75 > media_capture_rejected 7
retained restores = Restore 150
retained break:restore:media_capture_rejected = Restore 25 > media_capture_rejected 25
retained break:restore:retained_media_changed = Restore 25 > retained_media_changed 25
retained completions = CheckCompletion 150 > empty_tail 15, prefix_tokens 11, retired_key_live 6, token_count 14
retained break:completion:completion_count = CheckCompletion 25 > completion_count 25
retained break:completion:empty_tail = CheckCompletion 25 > empty_tail 25
retained break:completion:token_count = CheckCompletion 25 > token_count 25
retained break:completion:prefix_tokens = CheckCompletion 25 > prefix_tokens 25
retained break:completion:retired_key_live = CheckCompletion 25 > retired_key_live 25
"""
