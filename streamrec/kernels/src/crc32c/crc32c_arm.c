/* CRC32C with the crc32c instructions of ARMv8 (optional in v8.0, always there from v8.1 on).
 *
 * As in crc32c_x86.c, one chain leaves the unit idle, so long buffers run in three parts that are joined with
 * two multiplications. Those cost hundreds of cycles here, so only whole blocks of BLOCK_BYTES are split: between
 * instructions that finish in two cycles (Neoverse N1 and later) shorter buffers have little to win.
 */
#include "crc32c/crc32c.h"

#if defined(__aarch64__)
#if defined(__clang__)
#define ARMV8_CRC __attribute__((target("crc")))
#define CRC_BYTE __builtin_arm_crc32cb
#define CRC_WORD __builtin_arm_crc32cd
#else
#define ARMV8_CRC __attribute__((target("+crc")))
#define CRC_BYTE __builtin_aarch64_crc32cb
#define CRC_WORD __builtin_aarch64_crc32cx
#endif

#if defined(__linux__)
#include <sys/auxv.h>
#define CRC32_BIT (1ul << 7) /* HWCAP_CRC32 of <asm/hwcap.h> */
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define PART_WORDS 1024 /* words of 8 bytes in each of the three parts */
#define PART_BYTES (8 * PART_WORDS)
#define BLOCK_BYTES (3 * PART_BYTES)

static uint32_t part_power, part_power_twice; /* x^(8 PART_BYTES), x^(16 PART_BYTES) mod P */

ARMV8_CRC static uint32_t
extend_chain(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        state = CRC_WORD(state, load_le64(data));
    }
    for (; size > 0; data++, size--) {
        state = CRC_BYTE(state, *data);
    }
    return state;
}

ARMV8_CRC static uint32_t
extend_word(uint32_t state, uint64_t word)
{
    return CRC_WORD(state, word);
}

ARMV8_CRC static uint32_t
extend_block(uint32_t first, const uint8_t *data)
{
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = data + PART_BYTES; data < end; data += 8) {
        first = CRC_WORD(first, load_le64(data));
        second = CRC_WORD(second, load_le64(data + PART_BYTES));
        third = CRC_WORD(third, load_le64(data + 2 * PART_BYTES));
    }
    return crc32c_multiply(first, part_power_twice) ^ crc32c_multiply(second, part_power) ^ third;
}

static uint32_t
extend(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= BLOCK_BYTES; data += BLOCK_BYTES, size -= BLOCK_BYTES) {
        state = extend_block(state, data);
    }
    return extend_chain(state, data, size);
}

#define FIND_ATTRIBUTE ARMV8_CRC
#define FIND_EXTEND_WORD extend_word
#include "framing/find_header.h"

#define GOOD_NAME good_records
#define GOOD_ATTRIBUTE ARMV8_CRC
#define GOOD_EXTEND extend
#define GOOD_EXTEND_WORD extend_word
#include "framing/good_records.h"

static int
has_instructions(void)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & CRC32_BIT) != 0;
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.armv8_crc32", &found, &size, NULL, 0) == 0 && found;
#else
    return 0; /* no known way to ask here */
#endif
}

static int
usable(void)
{
    part_power = crc32c_power(PART_BYTES);
    part_power_twice = crc32c_power(2 * PART_BYTES);
    return has_instructions();
}

const struct crc32c_implementation crc32c_armv8 = {"armv8-crc", usable, extend, extend_word, find_header,
                                                    good_records};
#else
typedef int no_arm; /* ISO C forbids an empty translation unit */
#endif
