/* Asking for memory before it is needed, where the processor does not see it coming: records of many buffers in turn. */
#ifndef STREAMREC_PREFETCH_H
#define STREAMREC_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

enum { CACHE_LINE = 64, FAR_BYTES = 4096 };

/* Asks for the first `most` of `length` bytes. */
static inline void
prefetch_bytes(const uint8_t *bytes, size_t length, size_t most)
{
    for (size_t at = 0; at < length && at < most; at += CACHE_LINE) {
        __builtin_prefetch(bytes + at);
    }
}

/* Asks for so many bytes that lie `ahead` bytes further on than here. An address outside the buffer is only a hint, and
 * nothing is read. FAR_BYTES is for who goes straight on: what the processor sees coming by itself ends with a page, and
 * short records that left the caches were checked at half the speed. */
static inline void
prefetch_ahead(const uint8_t *here, size_t ahead, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CACHE_LINE) {
        __builtin_prefetch((const void *)((uintptr_t)here + ahead + at));
    }
}

#endif
