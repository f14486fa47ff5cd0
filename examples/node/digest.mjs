// Digests (contract section 2) and the domains of section 1. A value without a digest is refused.

import { createHash } from "node:crypto";

import { Foreign, Refusal } from "./wire.mjs";

const INT63 = 2n ** 63n;
const INT64 = 2n ** 64n;
const MAX_DEPTH = 64;

function expect(holds, what) {
  if (!holds) throw new Refusal(`refused: ${what}`);
}

// ── domains ─────────────────────────────────────────────────────────────────────────────────────────────────────────

export const isText = (value) => typeof value === "string" && value.isWellFormed();
export const isIdentifier = (value) => isText(value) && value !== "";
const isRolloutId = (value) => isIdentifier(value) && !value.includes("/") && value !== "__generation_cut__";
export const isLength = (value) => typeof value === "bigint" && value >= 0n && value < INT63;
export const isDigest = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
const isMask = (value) => Object.is(value, 0) || value === 1;
const isFloat32 = (value) => typeof value === "number" && Number.isFinite(value) && Math.fround(value) === value;

// ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

function u64(value) {
  expect(typeof value === "bigint" && value >= 0n && value < INT64, "expected an integer in [0, 2**64)");
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(value);
  return bytes;
}

const count = (items) => u64(BigInt(items.length));
const sized = (bytes) => Buffer.concat([count(bytes), bytes]);
const tokens = (ids) => Buffer.concat([count(ids), ...ids.map(u64)]);

function text(value) {
  expect(isText(value), "expected text");
  return sized(Buffer.from(value, "utf8"));
}

function float32s(values) {
  const bytes = Buffer.alloc(4 * values.length);
  values.forEach((value, index) => bytes.writeFloatBE(value, 4 * index));
  return Buffer.concat([count(values), bytes]);
}

function hashBytes(digest) {
  expect(isDigest(digest), "expected 64 lowercase hex characters");
  return Buffer.from(digest, "hex");
}

const sha256 = (domain, ...parts) => createHash("sha256").update(Buffer.concat([Buffer.from(domain), ...parts])).digest("hex");

// ── digests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The cumulative hash of token ids. */
export const prefixDigest = (ids) => sha256("nemo-gym-staging-prefix-v2", tokens(ids));

/** The chain hash of a delta on top of its parent's, null for a root. */
export const chainDigest = (parent, ids) =>
  sha256("nemo-gym-staging-chain-v1", ...(parent === null ? [Buffer.of(0)] : [Buffer.of(1), hashBytes(parent)]), tokens(ids));

/** The digest of a call's extras: null or a mapping. */
export function extrasDigest(extras) {
  expect(extras === null || extras instanceof Map, "extras must be a mapping or null");
  return sha256("nemo-gym-staging-extras-v1", Buffer.of(1), extra(extras, MAX_DEPTH));
}

function extra(value, depthLeft) {
  if (value === null) return Buffer.from("N");
  switch (typeof value) {
    case "boolean":
      return Buffer.from([0x42, value ? 1 : 0]);
    case "bigint": {
      expect(value >= -INT63 && value < INT63, "extras integers must fit in 64 bits");
      const bytes = Buffer.alloc(9, "I");
      bytes.writeBigInt64BE(value, 1);
      return bytes;
    }
    case "number": {
      expect(Number.isFinite(value), "extras floats must be finite");
      const bytes = Buffer.alloc(9, "F");
      bytes.writeDoubleBE(value, 1);
      return bytes;
    }
    case "string":
      return Buffer.concat([Buffer.from("S"), text(value)]);
  }
  expect(typeof value !== "symbol" && !(value instanceof Foreign), "extras cannot hold this");
  expect(depthLeft > 0, `extras are nested deeper than ${MAX_DEPTH}`);
  if (Array.isArray(value))
    return Buffer.concat([Buffer.from("L"), count(value), ...value.map((item) => extra(item, depthLeft - 1))]);
  expect([...value.keys()].every(isText), "extras mappings must have text keys");
  const keys = [...value.keys()].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  const items = keys.flatMap((key) => [text(key), extra(value.get(key), depthLeft - 1)]);
  return Buffer.concat([Buffer.from("D"), count(keys), ...items]);
}

/** The digest of a staged call: everything in it except the digest itself. */
export function callDigest(call) {
  checkCall(call);
  const optional = call.parent_call_id === null ? [Buffer.of(0)] : [Buffer.of(1), text(call.parent_call_id)];
  return sha256(
    "nemo-gym-staging-call-v2",
    Buffer.of(2, 2, 1),
    text(call.rollout_id),
    text(call.model_call_id),
    ...optional,
    text(call.mode),
    ...[call.prev_len, call.delta_len, call.cum_len, call.weight_version].map(u64),
    sized(tokens(call.token_ids_delta)),
    sized(float32s(call.token_mask_delta)),
    sized(float32s(call.generation_log_probs_delta)),
    hashBytes(call.extras_digest),
    Buffer.of(1),
    hashBytes(call.chain_hash),
    Buffer.of(1),
    hashBytes(call.cumulative_hash),
  );
}

/** The rules of sections 1 and 3 that a staged call must satisfy by itself. */
function checkCall(call) {
  expect(call.schema_version === 2n && call.digest_version === 2n, "unknown schema or digest version");
  expect(call.extras_digest_version === 1n, "unknown extras digest version");
  expect(isRolloutId(call.rollout_id), "rollout_id");
  expect(isIdentifier(call.model_call_id), "model_call_id");
  const root = call.parent_call_id === null;
  expect(root || isIdentifier(call.parent_call_id), "parent_call_id");
  expect([call.prev_len, call.delta_len, call.cum_len, call.weight_version].every(isLength), "lengths and version");
  expect(call.mode === (root ? "text" : "token_in"), "mode");
  expect((call.prev_len === 0n) === root, "prev_len");
  expect(call.delta_len >= 1n && call.cum_len === call.prev_len + call.delta_len, "delta_len and cum_len");
  const columns = [call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta];
  expect(columns.every((column) => BigInt(column.length) === call.delta_len), "token columns");
  const [ids, mask, logProbs] = columns;
  expect(ids.every(isLength) && mask.every(isMask) && logProbs.every(isFloat32), "token columns");
  expect(mask.every((flag, index) => flag === 1 || Object.is(logProbs[index], 0)), "a carry token's log-probability");
  expect([call.extras_digest, call.chain_hash, call.cumulative_hash].every(isDigest), "digests");
}
