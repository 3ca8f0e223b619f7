/* Which CRC32C runs, and the little polynomial arithmetic that the implementations share. */
#include "crc32c/crc32c.h"

const struct crc32c_implementation *const crc32c_implementations[] = {
#if defined(__x86_64__)
    &crc32c_avx512,
    &crc32c_sse42_pclmul,
    &crc32c_sse42,
#elif defined(__aarch64__)
    &crc32c_armv8,
#endif
    &crc32c_table,
    NULL,
};

struct crc32c_implementation crc32c_best;

void
crc32c_choose(void)
{
    crc32c_table.usable(); /* its tables first: the others make their constants with them */
    int chosen = 0;
    for (const struct crc32c_implementation *const *each = crc32c_implementations; *each != NULL; each++) {
        if ((*each)->usable() && !chosen) { /* every one's constants: tests run them all */
            crc32c_best = **each;
            chosen = 1;
        }
    }
}

uint32_t
crc32c_multiply(uint32_t a, uint32_t b)
{
    /* Reflected: the highest bit of a is x^0. Each round adds b * x^i if a has x^i, then makes b * x^(i+1). */
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        product ^= b & (0u - (uint32_t)((a & bit) != 0));
        b = (b >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

uint32_t
crc32c_power(size_t bytes)
{
    static const uint8_t zeros[8] = {0};
    uint32_t power = 0x80000000u; /* x^0 */
    for (; bytes >= sizeof zeros; bytes -= sizeof zeros) {
        power = crc32c_table.extend(power, zeros, sizeof zeros);
    }
    return crc32c_table.extend(power, zeros, bytes);
}
