/* A template, included by decode_varints.h once for each way to take values out of a block: READ_RUN and COUNT_RUN are
 * the functions' names, TAKE the way, TARGET the instructions it needs.
 *
 * Decodes varints up to `end`, see read_varints_by(). Each block begins where a varint does, so that what its last
 * bytes begin is left to the next one.
 */
TARGET static const uint8_t *
READ_RUN(const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    int64_t found = 0;
    while (end - at >= BLOCK_READ && room - found >= BLOCK_ROOM) {
        uint64_t ends = varint_ends(at);
        if (ends == 0 || !TAKE(at, ends, out + found)) {
            return NULL;
        }
        found += __builtin_popcountll(ends);
        at += BLOCK - __builtin_clzll(ends);
    }
    while (at < end) {
        uint8_t block[BLOCK_READ];
        int64_t values[BLOCK_ROOM];
        memset(block, 0x80, sizeof block); /* no varint ends in what follows */
        memcpy(block, at, (size_t)(end - at < BLOCK ? end - at : BLOCK));
        uint64_t ends = varint_ends(block);
        if (ends == 0 || !TAKE(block, ends, values)) {
            return NULL;
        }
        int64_t more = __builtin_popcountll(ends), kept = more < room - found ? more : room - found;
        if (kept > 0) {
            memcpy(out + found, values, (size_t)kept * sizeof *values);
        }
        found += more;
        at += BLOCK - __builtin_clzll(ends);
    }
    *count = found;
    return at;
}

/* How many varints there are up to `end`. No block waits for the one before. */
TARGET static const uint8_t *
COUNT_RUN(const uint8_t *at, const uint8_t *end, int64_t *count)
{
    int64_t found = 0;
    if (at < end && end[-1] >= 0x80) {
        return NULL;
    }
    for (; end - at >= BLOCK; at += BLOCK_STEP) {
        uint64_t ends = varint_ends(at);
        if (!are_varints(ends)) {
            return NULL;
        }
        found += __builtin_popcountll(ends & UINT64_MAX >> (BLOCK - BLOCK_STEP));
    }
    uint8_t block[BLOCK] = {0};
    memcpy(block, at, (size_t)(end - at));
    uint64_t ends = varint_ends(block);
    if (!are_varints(ends)) {
        return NULL;
    }
    *count = found + __builtin_popcountll(ends & ((1ULL << (end - at)) - 1));
    return end;
}

#undef READ_RUN
#undef COUNT_RUN
#undef TAKE
#undef TARGET
