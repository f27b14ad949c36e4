// Prints files as the generated readers in JavaScript read them, in the form of kaitai_readers.py.
"use strict"
const [folder] = process.argv.slice(2), crypto = require("crypto"), fs = require("fs")
const KaitaiStream = require("kaitai-struct/KaitaiStream")
const read = name => JSON.parse(fs.readFileSync(`${folder}/${name}`, "utf8"))
const schemas = read("schemas.json")

const camel = name => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase())
const hex = bytes => Buffer.from(bytes).toString("hex")
const sha256 = bytes => crypto.createHash("sha256").update(bytes).digest("hex")

function float(value) {
  const bits = Buffer.alloc(8)
  bits.writeDoubleBE(value)
  return Number.isNaN(value) ? "nan" : bits.toString("hex")
}

const number = (kind, value) => (/^f(32|64)$/.test(kind) ? float(value) : BigInt(value).toString())
const plain = item => BigInt(item instanceof Object ? item.value : item).toString()

function struct(schema, name, value) {
  const made = {}
  for (const field of schema.structs[name].fields) made[field.name] = node(schema, field.node, value[camel(field.name)], made)
  return made
}

function node(schema, field, value, before) {
  switch (field.kind) {
    case "number": return number(field.number, value)
    case "bytes": case "padding": return hex(value)
    case "text": return { bytes: hex(value.bytes), text: value.text }
    case "list": case "counted": return Array.from(value, item => node(schema, field.item, item, before))
    case "numbers": return Array.from(value.length === undefined ? [value] : value, item => number(field.item.number, item))
    case "blocks": return value.map(item => struct(schema, field.struct, item))
    case "switch": return node(schema, field.cases.find(one => String(one.code) === before[field.on]).node, value, before)
    case "struct": return struct(schema, field.struct, value)
    case "lines": return value.lines.map(line => [line.key, line.value])
    case "derived": return Array.isArray(value) ? value.map(plain) : plain(value)
    case "payloads": return { start: plain(value.start), sha256: sha256(value.bytes) }
    default: return BigInt(value).toString()
  }
}

function file(schema, root) {
  const made = struct(schema, "file", root), table = schema.structs.file.fields.find(field => field.node.kind === "payloads").node.table
  root[camel(table)].forEach((row, i) => {
    const type = schema.tensor_types.find(type => type.code === row.dtype)
    made[table][i].payload = null
    if (type === undefined) return
    made[table][i].payload = { nbytes: plain(row.nbytes), sha256: sha256(row.payloadBytes) }
    Object.assign(made[table][i].payload, struct(schema, type.payload, row.payload))
  })
  return made
}

const seen = read("files.json").map(([format, path]) => {
  const name = format[0] + format.slice(1).toLowerCase()
  const bytes = fs.readFileSync(path)
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)
  return file(schemas[format], new (require(`${folder}/${name}.js`)[name])(new KaitaiStream(buffer)))
})
process.stdout.write(JSON.stringify(seen))
