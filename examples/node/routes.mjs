// Route envelopes and span classification (contract section 6). Ids are not judged here: that is assembly's.

import { isLength } from "./digest.mjs";
import { Refusal } from "./wire.mjs";

const ITEM_SIZES = { int8: 1n, int16: 2n, int32: 4n };
const DIMENSION = "([1-9][0-9]{0,18})";
const ENVELOPE = new RegExp(`^nrlre1:(int8|int16|int32):${DIMENSION}x${DIMENSION}x${DIMENSION}:([A-Za-z0-9+/]*={0,2})$`);

const refuse = (why) => {
  throw new Refusal(`invalid_route_envelope: ${why}`);
};

/** The tensor of an envelope, or of nested lists of integers. */
export const decodeRoutes = (payload) => (typeof payload === "string" ? decodeEnvelope(payload) : decodeLists(payload));

function decodeEnvelope(envelope) {
  const [, dtype, ...parts] = ENVELOPE.exec(envelope) ?? refuse("not an envelope");
  const data = parts.pop();
  const shape = parts.map(BigInt);
  const bytes = shape.reduce((product, size) => product * size) * ITEM_SIZES[dtype];
  if (BigInt(data.length) !== ((bytes + 2n) / 3n) * 4n) refuse("the payload has not the length of the shape");
  if (Buffer.from(data, "base64").toString("base64") !== data) refuse("the payload is not what base64 would write");
  return { dtype, shape: shape.map(Number), data };
}

function decodeLists(tokens) {
  const ids = [];
  let width = null;
  for (const token of list(tokens)) {
    for (const layer of list(token)) {
      width ??= [token.length, list(layer).length];
      if (token.length !== width[0] || list(layer).length !== width[1]) refuse("the lists are ragged");
      for (const id of layer) {
        if (typeof id !== "bigint" || id < -32768n || id > 32767n) refuse("an id that int16 does not hold");
        ids.push(Number(id));
      }
    }
  }
  const data = Buffer.alloc(2 * ids.length);
  ids.forEach((id, index) => data.writeInt16LE(id, 2 * index));
  return { dtype: "int16", shape: [tokens.length, ...width], data: data.toString("base64") };
}

const list = (value) => (Array.isArray(value) && value.length ? value : refuse("expected a list that is not empty"));

/** The envelope of a tensor. */
export function encodeRoutes({ dtype, shape, data }) {
  if (!Object.hasOwn(ITEM_SIZES, dtype)) refuse(`no envelope holds ${dtype}`);
  if (shape.length !== 3 || shape.some((size) => size < 1)) refuse(`no envelope holds the shape ${shape}`);
  return `nrlre1:${dtype}:${shape.join("x")}:${data}`;
}

/** What a fragment contributes to a call, from lengths alone. */
export function classifySpan(carry, generation, staged) {
  if (![carry, generation, staged].every(isLength)) throw new Refusal("refused: expected lengths");
  if (staged > 0n && staged === carry + generation) return "full";
  return generation > 0n && generation <= staged ? "tail" : "sentinel";
}
