// Reads GGUF files and writes their headers with @huggingface/gguf:
// node rewrite.mjs CLIENT < pairs of paths as JSON > errors.
import fs from "node:fs"

const { gguf, buildGgufHeader } = await import(process.argv[2])
const errors = []
for (const [source, target] of JSON.parse(fs.readFileSync(0, "utf8"))) {
  try {
    const { typedMetadata, metadata, littleEndian, tensorInfoByteRange, tensorDataOffset } = await gguf(source, { allowLocalFile: true, typedMetadata: true })
    const stored = fs.readFileSync(source)
    const alignment = metadata["general.alignment"] ?? 32
    const header = await buildGgufHeader(new Blob([stored]), typedMetadata, { littleEndian, tensorInfoByteRange, alignment })
    fs.writeFileSync(target, Buffer.concat([Buffer.from(await header.arrayBuffer()), stored.subarray(Number(tensorDataOffset))]))
    errors.push("")
  } catch (error) {
    errors.push(`${error.name}: ${error.message}`)
  }
}
process.stdout.write(JSON.stringify(errors))
