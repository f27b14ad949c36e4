// Reads the headers of GGUF files with a client from npm:
// node headers.mjs CLIENT [set] < paths as JSON > results as JSON.
// Numbers are exact text: "n:INTEGER", or "f:BITS" of a float64. Strings are "s:TEXT".
import fs from "node:fs"

const bits = new DataView(new ArrayBuffer(8))

function number(value) {
  if (typeof value === "bigint") return `n:${value}`
  if (Number.isInteger(value) && !Object.is(value, -0)) return `n:${BigInt(value)}`
  bits.setFloat64(0, value)
  return Number.isNaN(value) ? "n:nan" : `f:${bits.getBigUint64(0).toString(16).padStart(16, "0")}`
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain)
  if (typeof value === "string") return `s:${value}`
  return typeof value === "boolean" ? value : number(value)
}

const tensor = (name, dims, type, offset, position) => [name, [...dims, type, offset, position].map(value => String(value))]

async function withHuggingface(path, { gguf, ggufAllShards }) {
  if (process.argv[3] === "set") {
    const { shards } = await ggufAllShards(path, { allowLocalFile: true, typedMetadata: true })
    return shards.map(fromHuggingface)
  }
  return fromHuggingface(await gguf(path, { allowLocalFile: true, typedMetadata: true }))
}

function fromHuggingface({ typedMetadata, tensorInfos, tensorDataOffset, littleEndian }) {
  const { version, tensor_count, kv_count, ...entries } = typedMetadata
  return {
    version: version.value,
    order: littleEndian ? "little" : "big",
    counts: [String(tensor_count.value), String(kv_count.value)],
    metadata: Object.entries(entries).map(([key, entry]) => [key, plain(entry.value), entry.type, entry.subType ?? null]),
    tensors: tensorInfos.map(({ name, shape, dtype, offset }) => tensor(name, shape, dtype, offset, tensorDataOffset + offset)),
  }
}

function flat(nested, path) {
  const isParent = value => typeof value === "object" && !Array.isArray(value)
  return Object.entries(nested).flatMap(([key, value]) => (isParent(value) ? flat(value, [...path, key]) : [[[...path, key].join("."), plain(value)]]))
}

async function withNodeLlamaCpp(path, { readGgufFileInfo }) {
  const info = await readGgufFileInfo(path, { sourceType: "filesystem", logWarnings: false })
  return {
    version: info.version,
    parts: info.splicedParts,
    counts: [String(info.totalTensorCount)],
    metadata: flat(info.metadata, []),
    tensors: info.fullTensorInfo.map(one => [...tensor(one.name, one.dimensions, one.ggmlType, one.offset, one.fileOffset), one.filePart]),
  }
}

const READERS = { "@huggingface/gguf": withHuggingface, "node-llama-cpp": withNodeLlamaCpp }
const client = process.argv[2]
const library = await import(client)
const results = []
for (const path of JSON.parse(fs.readFileSync(0, "utf8"))) {
  try {
    results.push(await READERS[client](path, library))
  } catch (error) {
    results.push({ error: `${error.name}: ${error.message}` })
  }
}
process.stdout.write(JSON.stringify(results), () => process.exit())
