// Route plans (contract sections 6 and 10): schema 2, and schema 3 with the sidecars of route boundaries.

import { isDigest, isIdentifier, isLength } from "./digest.mjs";
import { Refusal } from "./wire.mjs";

const PLAN = ["schema_version", "staging_partition", "spans", "cleanup_staging_keys", "expected_token_length"];
const LENGTHS = ["carry_len", "generation_len", "staged_route_len"];
const SPAN = ["staging_key", ...LENGTHS, "extras_digest_version", "extras_digest"];
const BOUNDARY = ["boundary_token_index", "repair_previous_token"];

/** The fields of a span: all of them are there, in both schemas. */
const spanFields = (schema) => (schema === 3n ? [...SPAN, ...BOUNDARY] : SPAN);

function expect(holds, what) {
  if (!holds) throw new Refusal(`invalid_route_plan: ${what}`);
}

/** The valid plan in a JSON value: exactly these fields, exactly these types, no defaults. */
export function decodePlan(value) {
  const plan = exactly(value, PLAN, "plan");
  expect(Array.isArray(plan.spans), "spans: expected a list");
  const spans = plan.spans.map((span) => exactly(span, spanFields(plan.schema_version), "span"));
  return check({ ...plan, spans: spans.map((span) => ({ boundary_token_index: null, repair_previous_token: false, ...span })) });
}

/** The JSON object of a plan, which must be valid. */
export function encodePlan(plan) {
  check(plan);
  const chosen = (record, names) => Object.fromEntries(names.map((name) => [name, record[name]]));
  return { ...chosen(plan, PLAN), spans: plan.spans.map((span) => chosen(span, spanFields(plan.schema_version))) };
}

function exactly(value, names, what) {
  expect(value instanceof Map && value.size === names.length && names.every((name) => value.has(name)), `${what}: fields`);
  return Object.fromEntries(value);
}

function check(plan) {
  const { spans, cleanup_staging_keys: owned, expected_token_length: length } = plan;
  expect(plan.schema_version === 2n || plan.schema_version === 3n, "schema_version: expected 2 or 3");
  expect(isIdentifier(plan.staging_partition), "staging_partition");
  expect(isLength(length), "expected_token_length");
  expect(Array.isArray(owned) && owned.every(isIdentifier) && distinct(owned), "cleanup_staging_keys");
  expect(Array.isArray(spans), "spans");
  for (const span of spans) {
    expect(isIdentifier(span.staging_key), "staging_key");
    for (const name of LENGTHS) expect(isLength(span[name]), name);
    expect(span.extras_digest_version === 1n && isDigest(span.extras_digest), "extras_digest");
  }
  const keys = spans.map((span) => span.staging_key);
  const own = new Set(owned);
  expect(distinct(keys) && keys.every((key) => own.has(key)), "spans: expected distinct keys of the rollout's own");
  const tokens = (span) => span.carry_len + span.generation_len;
  expect(!spans.length || spans.reduce((total, span) => total + tokens(span), 0n) === length, "spans: expected the row's tokens");
  let position = 0n;
  spans.forEach((span, at) => {
    checkBoundary(span, position, spans[at - 1]);
    position += tokens(span);
  });
  const announced = spans.some((span) => span.boundary_token_index !== null);
  expect(plan.schema_version === (announced ? 3n : 2n), "schema_version: expected 3 iff a span has a sidecar");
  return plan;
}

/** A sidecar is of the token before its span, and repairs it only between two calls that generated something. */
function checkBoundary({ boundary_token_index: index, repair_previous_token: repair, ...span }, position, previous) {
  expect(typeof repair === "boolean", "repair_previous_token: expected a bool");
  if (index !== null) {
    expect(isLength(index) && index === position - 1n, "boundary_token_index: expected the token before the span");
    expect(span.staged_route_len > 0n, "boundary_token_index: expected routes of the span's own");
  }
  if (repair) {
    expect(index !== null, "repair_previous_token: expected a boundary_token_index");
    expect(previous?.generation_len > 0n && span.generation_len > 0n, "repair_previous_token: expected two generations");
  }
}

const distinct = (values) => new Set(values).size === values.length;
