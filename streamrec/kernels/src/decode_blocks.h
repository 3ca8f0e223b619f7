/* A template, included by decode_varints.h once for each way to take a value out of a word: READ_BLOCKS is the
 * function's name, JOIN(word, size) the way, TARGET the instructions it needs.
 *
 * Decodes whole blocks as long as the bytes and the room for 64 values last; a last value that does not end in its
 * block is left. Returns where the reading ended.
 */
TARGET static const uint8_t *
READ_BLOCKS(const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    int64_t found = 0;
    for (const uint8_t *block = at; end - block >= BLOCK_READ && room - found >= BLOCK; block += BLOCK) {
        uint64_t ends = varint_ends(block), value;
        if (ends == UINT64_MAX && at == block) {
            for (int byte = 0; byte < BLOCK; byte++) {
                out[found + byte] = block[byte];
            }
            found += BLOCK;
            at += BLOCK;
            continue;
        }
        int left = __builtin_popcountll(ends);
#pragma GCC unroll 4
        for (; left > 0; left--, ends &= ends - 1) {
            const uint8_t *stop = block + __builtin_ctzll(ends) + 1;
            if (DECODE_LIKELY(stop - at <= 8)) {
                out[found++] = JOIN(load_word(at), stop - at);
            }
            else if (read_varint(at, stop, &value) != NULL) {
                out[found++] = (int64_t)value;
            }
            else {
                return NULL;
            }
            at = stop;
        }
        if (block + BLOCK - at >= MAX_VARINT) {
            return NULL;
        }
    }
    *count = found;
    return at;
}

#undef READ_BLOCKS
#undef JOIN
#undef TARGET
