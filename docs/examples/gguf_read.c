/* gguf_read: a reader of GGUF in plain C. gguf.h, with the layout and the decoders, is generated:
 *
 *     glft schema gguf --as c > gguf.h
 *     cc -std=c11 -O2 -Wall -Wextra -Werror -o gguf_read gguf_read.c && ./gguf_read model.gguf [TENSOR]
 *
 * Prints name, type, dims and the CRC-32 of the float32 weights of each tensor, or only the weights
 * of TENSOR, one a line. Exits with 2 if the file is not GGUF in this machine's byte order or its
 * sizes are inconsistent; never reads outside the file. Skips the metadata, except the alignment,
 * and does not check for duplicate names and overlaps.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf.h"

static const uint8_t *file; /* the whole file, its size, and how far it has been read */
static uint64_t size, at;
static uint32_t version;

static void fail(const char *what) {
    fprintf(stderr, "gguf_read: at byte %llu: %s\n", (unsigned long long)at, what);
    exit(2);
}

/* Returns the next n bytes, after making sure that they are there. */
static const uint8_t *take(uint64_t n) {
    if (n > size - at) fail("the file ends too early");
    at += n;
    return file + at - n;
}

/* Reads the next bytes into a number. */
#define READ(number) memcpy(&number, take(sizeof number), sizeof number)

/* Reads a length, count or dim, which has 32 bits in version 1. */
static uint64_t count(void) {
    uint32_t narrow;
    uint64_t wide;
    if (version == 1) return READ(narrow), narrow;
    return READ(wide), wide;
}

static uint64_t size_of(uint32_t type) {
    switch (type) {
    case GGUF_VALUE_TYPE_UINT8: case GGUF_VALUE_TYPE_INT8: case GGUF_VALUE_TYPE_BOOL: return 1;
    case GGUF_VALUE_TYPE_UINT16: case GGUF_VALUE_TYPE_INT16: return 2;
    case GGUF_VALUE_TYPE_UINT32: case GGUF_VALUE_TYPE_INT32: case GGUF_VALUE_TYPE_FLOAT32: return 4;
    case GGUF_VALUE_TYPE_UINT64: case GGUF_VALUE_TYPE_INT64: case GGUF_VALUE_TYPE_FLOAT64: return 8;
    default: return 0;
    }
}

/* Skips n values of a type; arrays in arrays up to a depth. */
static void skip(uint32_t type, uint64_t n, int depth) {
    uint64_t each = size_of(type);
    if (each) take(gguf_times(n, each));
    else while (n--) {
        if (type == GGUF_VALUE_TYPE_STRING) take(count());
        else if (type == GGUF_VALUE_TYPE_ARRAY && depth) {
            uint32_t inner;
            READ(inner);
            skip(inner, count(), depth - 1);
        } else fail("unknown type of a value, or arrays that are nested too deeply");
    }
}

enum { MAX_DIMS = 64, MAX_DEPTH = 64 };

struct tensor {
    const uint8_t *name;
    uint64_t name_len, dims[MAX_DIMS], rows, columns, offset, nbytes;
    uint32_t n_dims, type;
};

static void read_info(struct tensor *t) {
    t->name_len = count();
    t->name = take(t->name_len);
    READ(t->n_dims);
    if (t->n_dims > MAX_DIMS) fail("more dims than this reader takes");
    t->rows = t->columns = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        uint64_t n = t->dims[d] = count();
        if (d == 0) t->columns = n; /* the contiguous dim is the first */
        else t->rows = gguf_times(t->rows, n);
    }
    READ(t->type);
    READ(t->offset);
    t->nbytes = gguf_payload_size(t->type, t->rows, t->columns);
    if (t->nbytes == GGUF_NO_SIZE) fail("the type is unknown, or cannot hold a tensor of these dims");
}

static uint32_t crc32(const uint8_t *bytes, uint64_t n) {
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* Prints the weights of a tensor, or what it is and their checksum. */
static void print(const struct tensor *t, uint64_t data, int weights) {
    if (t->nbytes && (data > size || t->offset > size - data || t->nbytes > size - data - t->offset))
        fail("a payload lies outside the file");
    uint64_t n = gguf_times(t->rows, t->columns), nbytes = gguf_times(n, sizeof(float));
    float *w = nbytes < SIZE_MAX ? malloc(nbytes + 1) : NULL;
    const uint8_t *payload = t->nbytes ? file + data + t->offset : file;
    if (!w || !gguf_dequantize(t->type, t->rows, t->columns, payload, w)) fail("the tensor is too large");
    if (weights) {
        for (uint64_t i = 0; i < n; i++) printf("%.9g\n", w[i]);
    } else {
        fwrite(t->name, 1, t->name_len, stdout);
        printf(" %s [", gguf_ggml_type_name(t->type));
        for (uint32_t d = 0; d < t->n_dims; d++) printf("%s%llu", d ? ", " : "", (unsigned long long)t->dims[d]);
        printf("] %08x\n", (unsigned)crc32((const uint8_t *)w, nbytes));
    }
    free(w);
}

int main(int argc, char **argv) {
    FILE *stream = argc == 2 || argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!stream || fseek(stream, 0, SEEK_END)) return fprintf(stderr, "usage: gguf_read FILE [TENSOR]\n"), 2;
    size = (uint64_t)ftell(stream);
    rewind(stream);
    uint8_t *bytes = malloc(size + 1);
    if (!bytes || fread(bytes, 1, size, stream) != size) return fprintf(stderr, "gguf_read: cannot read\n"), 2;
    fclose(stream);
    file = bytes;

    if (memcmp(take(4), GGUF_HEADER_MAGIC, 4)) fail("not GGUF");
    READ(version);
    if (version < 1 || version > 3) fail("an unknown version, or the other byte order");
    uint64_t n_tensors = count(), n_kv = count(), alignment = 32;
    while (n_kv--) {
        uint64_t key_len = count();
        const uint8_t *key = take(key_len);
        uint32_t type, value;
        READ(type);
        if (key_len == 17 && !memcmp(key, "general.alignment", 17)) {
            if (type != GGUF_VALUE_TYPE_UINT32) fail("general.alignment is not a uint32");
            READ(value);
            if (value == 0) fail("general.alignment is 0");
            alignment = value;
        } else skip(type, 1, MAX_DEPTH);
    }
    uint64_t infos = at;
    struct tensor t;
    for (uint64_t i = 0; i < n_tensors; i++) read_info(&t); /* fails at the end of the file */
    uint64_t data = (at + alignment - 1) / alignment * alignment;
    at = infos;
    int found = argc == 2;
    for (uint64_t i = 0; i < n_tensors; i++) {
        read_info(&t);
        int named = argc == 3 && t.name_len == strlen(argv[2]) && !memcmp(t.name, argv[2], t.name_len);
        if (argc == 2 || named) print(&t, data, named);
        found |= named;
    }
    free(bytes);
    return found ? 0 : (fprintf(stderr, "gguf_read: no tensor of this name\n"), 2);
}
