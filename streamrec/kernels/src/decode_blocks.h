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
    while (end - at >= BLOCK_READ && room - found >= BLOCK) {
        uint64_t ends = varint_ends(at);
        if (ends == 0 || !TAKE(at, ends, out + found)) {
            return NULL;
        }
        found += __builtin_popcountll(ends);
        at += BLOCK - __builtin_clzll(ends);
    }
    while (at < end) {
        uint8_t block[BLOCK_READ];
        int64_t values[BLOCK];
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

/* How many varints there are up to `end`. */
TARGET static const uint8_t *
COUNT_RUN(const uint8_t *at, const uint8_t *end, int64_t *count)
{
    int64_t found = 0;
    while (at < end) {
        uint8_t copy[BLOCK];
        const uint8_t *block = at;
        if (end - at < BLOCK) {
            memset(copy, 0x80, sizeof copy);
            block = memcpy(copy, at, (size_t)(end - at));
        }
        uint64_t ends = varint_ends(block);
        if (ends == 0 || !are_varints(ends)) {
            return NULL;
        }
        found += __builtin_popcountll(ends);
        at += BLOCK - __builtin_clzll(ends);
    }
    *count = found;
    return at;
}

#undef READ_RUN
#undef COUNT_RUN
#undef TAKE
#undef TARGET
