// The protocol rollproof-oracle-1, as docs/protocol.md describes it: values in JSON, and one answer per line.
//
// Here an integer is a BigInt and a float is a Number, so that 2 and 2.0 stay two values, and 63-bit token ids whole.

export const PROTOCOL = "rollproof-oracle-1";

/** A refusal in the contract's own way: `code[:subject][: free text]`. */
export class Refusal extends Error {}

/** A value that no JSON text holds, such as bytes. Nothing in the contract accepts one. */
export class Foreign {}

const isTag = (key) => key.startsWith("$");

/** The value that JSON stands for: a mapping becomes a Map, a list an Array. */
export function decode(json) {
  if (typeof json === "number") return Number.isInteger(json) ? BigInt(json) : json;
  if (json === null || typeof json !== "object") return json;
  if (Array.isArray(json)) return json.map(decode);
  const [tag] = Object.keys(json).filter(isTag);
  if (tag === undefined) return new Map(Object.entries(json).map(([key, item]) => [key, decode(item)]));
  return decodeTag(tag, json[tag]);
}

function decodeTag(tag, content) {
  switch (tag) {
    case "$int":
      return content.startsWith("-") ? -BigInt(content.slice(1)) : BigInt(content);
    case "$float":
      return { nan: NaN, inf: Infinity, "-inf": -Infinity }[content] ?? Number(content);
    case "$dict":
      return new Map(content.map(([key, item]) => [decode(key), decode(item)]));
    case "$text":
      return Symbol.for(JSON.stringify(content)); // equal to itself, and no text
    case "$bytes":
    case "$tuple":
      return new Foreign();
    default:
      throw new Error(`unknown tag ${tag}`);
  }
}

/** The value in a field that is declared as float: there a plain number is a float, however round. */
export const decodeFloat = (json) => (typeof json === "number" ? json : decode(json));

export const encodeInteger = (value) =>
  value > BigInt(Number.MAX_SAFE_INTEGER) ? { $int: `0x${value.toString(16)}` } : Number(value);

export const encodeFloat = (value) => (Object.is(value, -0) ? { $float: "-0.0" } : value);

/** Answer every line of the standard input with `operations`, functions by name that take a request's object. */
export async function serve(name, areas, operations) {
  let waiting = Buffer.alloc(0);
  for await (const chunk of process.stdin) {
    waiting = waiting.length ? Buffer.concat([waiting, chunk]) : chunk;
    for (let end = waiting.indexOf(10); end >= 0; end = waiting.indexOf(10)) {
      const answer = answerLine(waiting.toString("utf8", 0, end));
      process.stdout.write(JSON.stringify(answer) + "\n");
      waiting = waiting.subarray(end + 1);
    }
  }

  function answerLine(line) {
    let id = null;
    try {
      const request = JSON.parse(line);
      id = request.id ?? null;
      if (request.operation === "describe")
        return { id, description: { name, protocol: PROTOCOL, areas, operations: Object.keys(operations) } };
      if (!Object.hasOwn(operations, request.operation))
        return { id, error: { code: "unknown_operation", message: `no operation ${request.operation}` } };
      return { id, accepted: operations[request.operation](request) };
    } catch (error) {
      if (error instanceof Refusal) return { id, refused: error.message };
      if (error instanceof SyntaxError) return { id, error: { code: "bad_json", message: error.message } };
      return { id, crashed: { error: error.name, message: error.message } };
    }
  }
}
