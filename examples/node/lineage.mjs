// Verify a rollout's calls and lay its terminal chain out as one row (contract section 4), in linear time.

import { callDigest, chainDigest, isDigest, prefixDigest } from "./digest.mjs";
import { Refusal } from "./wire.mjs";

const VERSIONS = { schema_version: 2n, digest_version: 2n, extras_digest_version: 1n };
const UNSUPPORTED = {
  schema_version: "unsupported_schema",
  digest_version: "unsupported_digest",
  extras_digest_version: "unsupported_extras_digest",
};
const COMPARED = [
  "model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version", "digest",
  "extras_digest", "chain_hash", "cumulative_hash",
]; // prettier-ignore

function require(holds, code, detail) {
  if (!holds) throw new Refusal(detail === undefined ? code : `${code}: ${String(detail)}`);
}

const isNumeric = (value) => ["bigint", "number", "boolean"].includes(typeof value);

/** Whether two fields are equal; a number equals a number of another type, whose type a later rule judges. */
const same = (left, right) => (isNumeric(left) && isNumeric(right) ? left == right : left === right);

/** The verified row. `calls` are the staged calls in the order of the manifest; the first violated rule is refused. */
export function linearize(receipt, calls) {
  checkReceipt(receipt);
  require(calls.length === receipt.manifest.length, "row_count_mismatch");
  checkPairs(receipt, calls);
  const records = new Map(receipt.manifest.map((record) => [record.model_call_id, record]));
  checkGraph(records);
  const byId = new Map(calls.map((call) => [call.model_call_id, call]));
  return layOut(receipt.rollout_id, terminalChain(receipt, records).map((record) => byId.get(record.model_call_id)));
}

function checkReceipt(receipt) {
  for (const [field, version] of Object.entries(VERSIONS)) require(same(receipt[field], version), UNSUPPORTED[field]);
  require(receipt.failure_reason === null, "rollout_failed", receipt.failure_reason);
  require(!receipt.capture_poisoned, "capture_poisoned");
  require(receipt.manifest.length > 0, "empty_manifest");
  const calls = new Set();
  const keys = new Set();
  for (const { model_call_id, staging_key } of receipt.manifest) {
    require(!calls.has(model_call_id), "duplicate_manifest_row", model_call_id);
    require(!keys.has(staging_key), "duplicate_staging_key", staging_key);
    calls.add(model_call_id);
    keys.add(staging_key);
  }
}

function checkPairs(receipt, calls) {
  const listed = new Set(receipt.manifest.map((record) => record.model_call_id));
  const seen = new Set();
  receipt.manifest.forEach((record, index) => {
    const call = calls[index];
    require(!seen.has(call.model_call_id), "duplicate_snapshot", call.model_call_id);
    require(listed.has(call.model_call_id), "snapshot_identity_mismatch", call.model_call_id);
    require(call.model_call_id === record.model_call_id, "snapshot_order_mismatch", call.model_call_id);
    seen.add(call.model_call_id);
    require(same(call.rollout_id, receipt.rollout_id), "wrong_rollout", call.model_call_id);
    for (const field of COMPARED) require(same(call[field], record[field]), `wrong_${field}`, call.model_call_id);
    for (const field of Object.keys(VERSIONS)) {
      const agree = same(call[field], record[field]) && same(call[field], receipt[field]);
      require(agree, `wrong_${field}`, call.model_call_id);
    }
    require(isDigest(call.digest), "invalid_snapshot", call.model_call_id);
    require(call.digest === digestOf(call), "corrupt_digest", call.model_call_id);
  });
}

function digestOf(call) {
  try {
    return callDigest(call);
  } catch (error) {
    if (error instanceof Refusal) throw new Refusal(`invalid_snapshot: ${error.message}`);
    throw error;
  }
}

function checkGraph(records) {
  const endless = callsThatReachACycle(records);
  for (const [id, record] of records) {
    if (record.parent_call_id !== null) {
      const parent = records.get(record.parent_call_id);
      require(parent !== undefined, "missing_parent", id);
      require(same(record.prev_len, parent.cum_len), "parent_length_mismatch", id);
    }
    require(!endless.has(id), "lineage_cycle", id);
  }
}

/** Every call is walked over once: a walk stops where the rest of the way is known. */
function callsThatReachACycle(records) {
  const ends = new Map();
  for (const start of records.keys()) {
    const walk = new Set();
    let current = start;
    while (records.has(current) && !ends.has(current) && !walk.has(current)) {
      walk.add(current);
      current = records.get(current).parent_call_id;
    }
    const leadsOut = ends.get(current) ?? !walk.has(current);
    for (const id of walk) ends.set(id, leadsOut);
  }
  return new Set([...ends].filter(([, leadsOut]) => !leadsOut).map(([id]) => id));
}

function terminalChain(receipt, records) {
  require(records.has(receipt.terminal_model_call_id), "missing_terminal");
  const chain = [];
  for (let id = receipt.terminal_model_call_id; id !== null; id = records.get(id).parent_call_id) chain.push(records.get(id));
  return chain.reverse();
}

function carryLength(call) {
  const { token_mask_delta: mask, model_call_id: id } = call;
  const first = mask.indexOf(1);
  require(first < 0 || !mask.includes(0, first), "invalid_mask_order", id);
  require(first >= 0, "empty_generation", id);
  return first;
}

function layOut(rolloutId, chain) {
  const row = {
    rollout_id: rolloutId, token_ids: [], token_mask: [], logprobs: [], prompt_len: 0, model_call_ids: [],
    weight_versions: [], weight_version_spans: [], link_spans: [], extras_commitments: [],
  }; // prettier-ignore
  let chainHash = null;
  for (const call of chain) {
    const { model_call_id, weight_version, extras_digest_version, extras_digest } = call;
    chainHash = chainDigest(chainHash, call.token_ids_delta);
    require(call.chain_hash === chainHash, "chain_hash_mismatch", model_call_id);
    const carry_len = carryLength(call);
    const start = row.token_ids.length;
    for (const id of call.token_ids_delta) row.token_ids.push(id);
    for (const flag of call.token_mask_delta) row.token_mask.push(flag);
    for (const logProb of call.generation_log_probs_delta) row.logprobs.push(logProb);
    row.model_call_ids.push(model_call_id);
    row.weight_versions.push(weight_version);
    row.weight_version_spans.push({ model_call_id, start, end: row.token_ids.length, weight_version });
    row.link_spans.push({ model_call_id, carry_len, generation_len: call.token_ids_delta.length - carry_len });
    row.extras_commitments.push({ model_call_id, extras_digest_version, extras_digest });
  }
  row.prompt_len = row.link_spans[0].carry_len;
  require(chain.at(-1).cumulative_hash === prefixDigest(row.token_ids), "cumulative_hash_mismatch");
  return row;
}
