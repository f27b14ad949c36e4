// What a library has beside functions of types: the level of the processor, `memset`, by which compilers
// clear arrays, and an entry point and a check of the stack for Windows.

typedef uint64_t words __attribute__((vector_size(32), aligned(1), may_alias));

__attribute__((visibility("hidden"), used)) void *memset(void *start, int value, __SIZE_TYPE__ size) {
    uint64_t word = (uint8_t)value * 0x0101010101010101u;
    uint8_t *to = start, *end = to + size;
    for (; end - to >= 32; to += 32) {
        *(words *)to = (words){word, word, word, word};
        __asm__ volatile("" ::: "memory");  // or the loop becomes a call of memset
    }
    for (; to < end; to++) {
        *to = (uint8_t)value;
        __asm__ volatile("" ::: "memory");
    }
    return start;
}

#ifdef __x86_64__
static void cpuid(uint32_t leaf, uint32_t *b, uint32_t *c) {
    uint32_t a = leaf, d;
    *c = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(*b), "+c"(*c), "=d"(d));
    if (leaf == 0 || leaf == 0x80000000) *b = a;  // the last leaf
}

// The level of x86-64 that the processor and the system support, of the levels that are compiled.
int32_t x86_64_level(void) {
    uint32_t last, extended, b, c, saved, high;
    cpuid(0, &last, &c);
    cpuid(0x80000000, &extended, &c);
    if (last < 7 || extended < 0x80000001) return 1;
    cpuid(1, &b, &c);  // SSE3, SSSE3, FMA, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C
    if ((c & 0x38D83201) != 0x38D83201) return 1;
    cpuid(0x80000001, &b, &c);  // LAHF, LZCNT
    if ((c & 0x21) != 0x21) return 1;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));  // the registers that the system saves
    cpuid(7, &b, &c);  // BMI1, AVX2, BMI2; AVX-512 F, DQ, CD, BW, VL
    if ((saved & 0x6) != 0x6 || (b & 0x128) != 0x128) return 1;
    return (saved & 0xE6) == 0xE6 && (b & 0xD0030000) == 0xD0030000 ? 4 : 3;
}
#endif

#ifdef _WIN32
#ifdef __x86_64__
// Touches each page of a stack frame, whose size is in rax; compilers call it for large frames.
__asm__(
    ".globl ___chkstk_ms\n"
    "___chkstk_ms:\n"
    "push %rcx\n"
    "push %rax\n"
    "lea 24(%rsp), %rcx\n"
    "1: cmp $0x1000, %rax\n"
    "jb 2f\n"
    "sub $0x1000, %rcx\n"
    "test %rcx, (%rcx)\n"
    "sub $0x1000, %rax\n"
    "jmp 1b\n"
    "2: sub %rax, %rcx\n"
    "test %rcx, (%rcx)\n"
    "pop %rax\n"
    "pop %rcx\n"
    "ret\n");
#endif
int32_t DllMain(void *module, uint32_t reason, void *reserved) {
    return (void)module, (void)reason, (void)reserved, 1;
}
#endif
