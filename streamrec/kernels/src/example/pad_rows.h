/* How a row is filled up to the length of the longest: what pad.c and decode_padded.h share.
 *
 * A large result has left the cache by the time that anybody looks at it. It is written past the cache: a usual store
 * first reads the line that it changes from memory, and pushes out what will be needed sooner.
 */
#ifndef STREAMREC_PAD_ROWS_H
#define STREAMREC_PAD_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>
#define STREAMS 1
#else
#define STREAMS 0
#endif

enum { LARGE_RESULT = 1 << 20 };

typedef struct {
    int64_t longest; /* elements of a row of the result */
    const uint8_t *fill;
    size_t width; /* bytes of an element */
    int stream;   /* past the cache: see streams() */
} row_form;

/* Whether a result of so many bytes is written past the cache. */
static inline int
streams(size_t width, int64_t size)
{
    return STREAMS && width == 8 && size >= LARGE_RESULT;
}

/* Fills up the end of a row, from `at` on; elements of 4 and 8 bytes are what there is, spans have 16. */
static inline void
fill_up(uint8_t *at, int64_t elements, const uint8_t *fill, size_t width)
{
    if (width == 8) {
        uint64_t element;
        memcpy(&element, fill, 8);
        for (int64_t i = 0; i < elements; i++) {
            memcpy(at + 8 * i, &element, 8);
        }
    }
    else if (width == 4) {
        uint32_t element;
        memcpy(&element, fill, 4);
        for (int64_t i = 0; i < elements; i++) {
            memcpy(at + 4 * i, &element, 4);
        }
    }
    else {
        for (int64_t i = 0; i < elements; i++) {
            memcpy(at + (size_t)i * width, fill, width);
        }
    }
}

#if STREAMS
/* Elements of eight bytes, past the cache; `target` is aligned to eight bytes. */
static inline void
stream_words(uint8_t *target, const uint8_t *source, size_t words)
{
    long long word;
    size_t done = 0;
    for (; done < words && (uintptr_t)(target + 8 * done) % 16; done++) {
        memcpy(&word, source + 8 * done, 8);
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
    for (; done + 2 <= words; done += 2) {
        _mm_stream_si128((__m128i *)(void *)(target + 8 * done),
                         _mm_loadu_si128((const __m128i *)(const void *)(source + 8 * done)));
    }
    if (done < words) {
        memcpy(&word, source + 8 * done, 8);
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
}

/* The same of one element, `words` times. */
static inline void
stream_fill(uint8_t *target, size_t words, const uint8_t *fill)
{
    long long word;
    memcpy(&word, fill, 8);
    const __m128i pair = _mm_set1_epi64x(word);
    size_t done = 0;
    for (; done < words && (uintptr_t)(target + 8 * done) % 16; done++) {
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
    for (; done + 2 <= words; done += 2) {
        _mm_stream_si128((__m128i *)(void *)(target + 8 * done), pair);
    }
    if (done < words) {
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
}
#endif

/* Writes one row, its elements and what fills it up; returns where the next one goes. */
static inline uint8_t *
write_row(const row_form *form, uint8_t *target, const uint8_t *values, int64_t count)
{
    size_t taken = (size_t)count * form->width, left = (size_t)(form->longest - count);
#if STREAMS
    if (form->stream) {
        stream_words(target, values, (size_t)count);
        stream_fill(target + taken, left, form->fill);
        return target + taken + left * form->width;
    }
#endif
    memcpy(target, values, taken);
    fill_up(target + taken, (int64_t)left, form->fill, form->width);
    return target + taken + left * form->width;
}

/* All rows are written: another thread may read them. */
static inline void
end_rows(void)
{
#if STREAMS
    _mm_sfence();
#endif
}

#endif
