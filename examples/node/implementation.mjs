// Digests, route envelopes and plans, span classification and lineage of the rollout-reassembly contract, behind a pipe.

import { callDigest, chainDigest, extrasDigest, prefixDigest } from "./digest.mjs";
import { linearize } from "./lineage.mjs";
import { decodePlan, encodePlan } from "./plan.mjs";
import { classifySpan, decodeRoutes, encodeRoutes } from "./routes.mjs";
import { decode, decodeFloat, encodeFloat, encodeInteger, serve } from "./wire.mjs";

const FLOAT_COLUMNS = ["token_mask_delta", "generation_log_probs_delta"];
const VERSIONS = { schema_version: 2, digest_version: 2, extras_digest_version: 1 };

/** A record's fields, with the defaults that a request may leave out. */
const readRecord = (json, defaults) =>
  Object.fromEntries(Object.entries({ ...defaults, ...json }).map(([name, value]) => [name, decode(value)]));

function readCall(json) {
  const call = readRecord(json, VERSIONS);
  for (const name of FLOAT_COLUMNS) call[name] = json[name].map(decodeFloat);
  return call;
}

function readReceipt(json) {
  const defaults = { ...VERSIONS, manifest: [], terminal_model_call_id: null, capture_poisoned: false, failure_reason: null };
  const receipt = readRecord(json, defaults);
  receipt.manifest = (json.manifest ?? []).map((record) => readRecord(record, VERSIONS));
  return receipt;
}

function writeRow(row) {
  const versioned = (item, name) => ({ ...item, [name]: encodeInteger(item[name]) });
  return {
    ...row,
    token_ids: row.token_ids.map(encodeInteger),
    logprobs: row.logprobs.map(encodeFloat),
    weight_versions: row.weight_versions.map(encodeInteger),
    weight_version_spans: row.weight_version_spans.map((span) => versioned(span, "weight_version")),
    extras_commitments: row.extras_commitments.map((item) => versioned(item, "extras_digest_version")),
  };
}

function readPlan(json) {
  const span = { boundary_token_index: null, repair_previous_token: false };
  const plan = readRecord(json, { schema_version: 2 });
  plan.spans = json.spans.map((each) => readRecord(each, span));
  return plan;
}

/** A plan, or the JSON of one, with its integers as the wire has them. */
const writePlan = (plan) => integersIn({ ...plan, spans: plan.spans.map(integersIn) });
const integersIn = (record) =>
  Object.fromEntries(Object.entries(record).map(([name, value]) => [name, typeof value === "bigint" ? encodeInteger(value) : value]));

await serve("node-example", ["digest", "lineage", "routes", "boundary"], {
  prefix_digest: ({ token_ids }) => prefixDigest(token_ids.map(decode)),
  chain_digest: ({ parent_chain_hash, token_ids }) => chainDigest(decode(parent_chain_hash), token_ids.map(decode)),
  extras_digest: ({ extras }) => extrasDigest(decode(extras)),
  call_digest: ({ call }) => callDigest(readCall(call)),
  linearize: ({ receipt, calls }) => writeRow(linearize(readReceipt(receipt), calls.map(readCall))),
  decode_routes: ({ payload }) => decodeRoutes(decode(payload)),
  encode_routes: ({ routes }) => encodeRoutes(routes),
  classify_span: ({ carry_len, generation_len, staged_route_len }) =>
    classifySpan(decode(carry_len), decode(generation_len), decode(staged_route_len)),
  decode_plan: ({ value }) => writePlan(decodePlan(decode(value))),
  encode_plan: ({ plan }) => writePlan(encodePlan(readPlan(plan))),
});
