/* glft_read: a reader of GLFT v1 in plain C. glft.h, with the layout, is generated:
 *
 *     glft schema glft --as c > glft.h
 *     cc -std=c99 -Wall -Wextra -Werror -o glft_read glft_read.c -lm && ./glft_read model.gguf-lite
 *
 * Prints name, type, dims and the CRC-32 of the little-endian float32 values of each tensor. Exits
 * with 2 if the file is not GLFT v1 or its sizes are inconsistent; never reads outside the file or
 * allocates more than its size. Skips the metadata, and does not check for duplicate names and
 * overlaps. Runs on either byte order: numbers are assembled from bytes, as laid out in glft.h.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glft.h"

static const uint8_t *file; /* the whole file, its size, and how far it has been read */
static uint64_t size, at;

static void fail(const char *what) {
    fprintf(stderr, "glft_read: at byte %llu: %s\n", (unsigned long long)at, what);
    exit(2);
}

/* Returns the next n bytes, after making sure that they are there. */
static const uint8_t *take(uint64_t n) {
    if (n > size - at) fail("the file ends too early");
    at += n;
    return file + at - n;
}

/* Returns an integer of n bytes, the lowest first, whatever this machine's own order. */
static uint64_t number(const uint8_t *bytes, size_t n) {
    uint64_t value = 0;
    while (n--) value = value << 8 | bytes[n];
    return value;
}

/* Reads a member of a packed struct that begins at `bytes`. */
#define MEMBER(bytes, type, member) number((bytes) + offsetof(struct type, member), sizeof(((struct type *)0)->member))

static float half(const uint8_t *bytes) {
    int bits = bytes[0] | bytes[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), exponent - 25);
    return bits >> 15 ? -value : value;
}

static float single(const uint8_t *bytes) {
    uint32_t bits = (uint32_t)number(bytes, 4);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t crc32(uint32_t crc, const uint8_t *bytes, int n) {
    crc = ~crc;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

enum { MAX_DIMS = 64 };

struct tensor {
    const uint8_t *name;
    uint64_t name_len, n_dims, dims[MAX_DIMS], rows, columns, type, offset;
};

/* Returns the bytes of the payload, or fails if the type cannot hold these dims. */
static uint64_t payload_bytes(const struct tensor *t) {
    uint64_t nbytes = glft_payload_size(t->type, t->rows, t->columns);
    int is_quantized = t->type != GLFT_TYPE_F32 && t->type != GLFT_TYPE_F16;
    if (is_quantized && (t->n_dims < 2 || t->rows * t->columns == 0)) fail("a quantized tensor needs dims [out, in] above 0");
    if (nbytes == GLFT_NO_SIZE) fail("the type cannot hold a tensor of these dims");
    return nbytes;
}

/* Returns number i of the tensor, in C order. */
static float element(const struct tensor *t, const uint8_t *payload, uint64_t i) {
    switch (t->type) {
    case GLFT_TYPE_F32: return single(payload + 4 * i);
    case GLFT_TYPE_F16: return half(payload + 2 * i);
    case GLFT_TYPE_Q8_PER_CHANNEL: {
        const uint8_t *codes = payload + glft_q8_per_channel_codes_at(t->rows, t->columns);
        return half(payload + 2 * (i / t->columns)) * (float)(int8_t)codes[i];
    }
    case GLFT_TYPE_Q4_PER_GROUP_64: {
        uint8_t byte = payload[glft_q4_per_group_64_nibbles_at(t->rows, t->columns) + i / 2];
        int code = i % 2 ? byte >> 4 : byte & 15; /* the low nibble is the even column */
        return half(payload + 2 * (i / 64)) * (float)(code >= 8 ? code - 16 : code);
    }
    default: fail("no formula for this type"); return 0;
    }
}

/* Reads a descriptor. The product of nonzero sizes must be below 2^59, so nothing can wrap. */
static void describe(struct tensor *t) {
    uint64_t product = 1;
    t->name_len = MEMBER(take(sizeof(struct glft_descriptor_before_name)), glft_descriptor_before_name, name_len);
    t->name = take(t->name_len);
    t->n_dims = MEMBER(take(sizeof(struct glft_descriptor_after_name)), glft_descriptor_after_name, n_dims);
    if (t->n_dims > MAX_DIMS) fail("more dims than this reader takes");
    t->rows = t->columns = 1;
    for (uint64_t d = 0; d < t->n_dims; d++) {
        uint64_t n = t->dims[d] = number(take(sizeof(uint32_t)), sizeof(uint32_t));
        if (n && product >= ((uint64_t)1 << 59) / n + (((uint64_t)1 << 59) % n != 0)) fail("the tensor is too large");
        if (n) product *= n;
        if (d == 0) t->rows = n;
        else t->columns *= n;
    }
    const uint8_t *last = take(sizeof(struct glft_descriptor_after_dims));
    t->type = MEMBER(last, glft_descriptor_after_dims, dtype);
    t->offset = MEMBER(last, glft_descriptor_after_dims, offset);
    if (!glft_type_name(t->type)) fail("unknown type");
}

static void print(const struct tensor *t, uint64_t data) {
    uint64_t nbytes = payload_bytes(t);
    if (t->offset > size - data || nbytes > size - data - t->offset) fail("a payload lies outside the file");
    uint32_t crc = 0;
    for (uint64_t i = 0; i < t->rows * t->columns; i++) {
        float value = element(t, file + data + t->offset, i);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        uint8_t bytes[4] = {bits & 255, bits >> 8 & 255, bits >> 16 & 255, bits >> 24};
        crc = crc32(crc, bytes, 4);
    }
    fwrite(t->name, 1, t->name_len, stdout);
    printf(" %s [", glft_type_name(t->type));
    for (uint64_t d = 0; d < t->n_dims; d++) printf("%s%llu", d ? ", " : "", (unsigned long long)t->dims[d]);
    printf("] %08x\n", crc);
}

int main(int argc, char **argv) {
    FILE *stream = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!stream || fseek(stream, 0, SEEK_END)) return fprintf(stderr, "usage: glft_read FILE\n"), 2;
    size = (uint64_t)ftell(stream);
    rewind(stream);
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes || fread(bytes, 1, size, stream) != size) return fprintf(stderr, "glft_read: cannot read\n"), 2;
    fclose(stream);
    file = bytes;

    const uint8_t *header = take(sizeof(struct glft_header));
    if (MEMBER(header, glft_header, magic) != GLFT_HEADER_MAGIC) fail("not GLFT, or not little-endian");
    if (MEMBER(header, glft_header, version) != GLFT_HEADER_VERSION) fail("another version");
    uint64_t n_tensors = MEMBER(header, glft_header, n_tensors);
    take(MEMBER(header, glft_header, metadata_len));
    uint64_t descriptors = at;
    struct tensor t;
    for (uint64_t i = 0; i < n_tensors; i++) describe(&t); /* fails at the end of the file */
    uint64_t data = at; /* offsets count from the end of the descriptors */
    at = descriptors;
    for (uint64_t i = 0; i < n_tensors; i++) {
        describe(&t);
        print(&t, data);
    }
    free(bytes);
    return 0;
}
