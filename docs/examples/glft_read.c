/* glft_read: a reader of GLFT v1 in plain C. glft.h, with the layout and the decoders, is generated:
 *
 *     glft schema glft --as c > glft.h
 *     cc -std=c11 -O2 -Wall -Wextra -Werror -o glft_read glft_read.c && ./glft_read model.glft
 *
 * Prints name, type, dims and the CRC-32 of the float32 weights of each tensor. Exits with 2 if the
 * file is not GLFT v1 or its sizes are inconsistent; never reads outside the file. Skips the
 * metadata, and does not check for duplicate names and overlaps. Runs on little-endian machines.
 */
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

/* Reads the next bytes into a number or a packed struct. */
#define READ(variable) memcpy(&variable, take(sizeof variable), sizeof variable)

enum { MAX_DIMS = 64 };

struct tensor {
    const uint8_t *name;
    uint64_t name_len, n_dims, rows, columns;
    uint32_t dims[MAX_DIMS];
    struct glft_descriptor_after_dims last; /* type and offset */
};

/* Reads a descriptor. The product of nonzero sizes must be below 2^59, so nothing can wrap. */
static void describe(struct tensor *t) {
    struct glft_descriptor_before_name before;
    struct glft_descriptor_after_name after;
    uint64_t product = 1;
    READ(before);
    t->name_len = before.name_len;
    t->name = take(t->name_len);
    READ(after);
    t->n_dims = after.n_dims;
    if (t->n_dims > MAX_DIMS) fail("more dims than this reader takes");
    t->rows = t->columns = 1;
    for (uint64_t d = 0; d < t->n_dims; d++) {
        READ(t->dims[d]);
        uint64_t n = t->dims[d];
        if (n && product >= ((uint64_t)1 << 59) / n + (((uint64_t)1 << 59) % n != 0)) fail("the tensor is too large");
        if (n) product *= n;
        if (d == 0) t->rows = n;
        else t->columns *= n;
    }
    READ(t->last);
    if (!glft_type_name(t->last.dtype)) fail("unknown type");
}

static uint32_t crc32(const uint8_t *bytes, uint64_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void print(const struct tensor *t, uint64_t data) {
    uint64_t type = t->last.dtype, n = t->rows * t->columns;
    int is_quantized = type != GLFT_TYPE_F32 && type != GLFT_TYPE_F16;
    if (is_quantized && (t->n_dims < 2 || n == 0)) fail("a quantized tensor needs dims [out, in] above 0");
    uint64_t nbytes = glft_payload_size(type, t->rows, t->columns);
    if (nbytes == GLFT_NO_SIZE) fail("the type cannot hold a tensor of these dims");
    if (t->last.offset > size - data || nbytes > size - data - t->last.offset) fail("a payload lies outside the file");
    float *w = malloc(n * sizeof(float) + 1); /* at most eight times the payload */
    if (!w || !glft_dequantize(type, t->rows, t->columns, file + data + t->last.offset, w)) fail("the tensor is too large");
    fwrite(t->name, 1, t->name_len, stdout);
    printf(" %s [", glft_type_name(type));
    for (uint64_t d = 0; d < t->n_dims; d++) printf("%s%u", d ? ", " : "", (unsigned)t->dims[d]);
    printf("] %08x\n", (unsigned)crc32((const uint8_t *)w, n * sizeof(float)));
    free(w);
}

int main(int argc, char **argv) {
    FILE *stream = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!stream || fseek(stream, 0, SEEK_END)) return fprintf(stderr, "usage: glft_read FILE\n"), 2;
    size = (uint64_t)ftell(stream);
    rewind(stream);
    uint8_t *bytes = malloc(size + 1);
    if (!bytes || fread(bytes, 1, size, stream) != size) return fprintf(stderr, "glft_read: cannot read\n"), 2;
    fclose(stream);
    file = bytes;

    struct glft_header header;
    READ(header);
    if (header.magic != GLFT_HEADER_MAGIC) fail("not GLFT, or not little-endian");
    if (header.version != GLFT_HEADER_VERSION) fail("another version");
    take(header.metadata_len);
    uint64_t descriptors = at;
    struct tensor t;
    for (uint64_t i = 0; i < header.n_tensors; i++) describe(&t); /* fails at the end of the file */
    uint64_t data = at; /* offsets count from the end of the descriptors */
    at = descriptors;
    for (uint64_t i = 0; i < header.n_tensors; i++) {
        describe(&t);
        print(&t, data);
    }
    free(bytes);
    return 0;
}
