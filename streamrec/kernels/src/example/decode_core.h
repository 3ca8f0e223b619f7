/* Columns out of Example and SequenceExample messages: the walk over the wire bytes, free of Python.
 *
 * Which bytes are accepted and what they mean is laid down in tests/oracle/parsing.py, the readable twin;
 * the two agree on every input, damaged ones too. Callers: decode.c (for Python) and fuzz/fuzz_decode.c.
 *
 * Rules:
 *  - no length that is read is believed before it is compared with what is left;
 *  - memory that grows with the input is bounded by a small multiple of it: 8 bytes for each wire byte, and what
 *    a description asks for in dense columns, which the caller owns;
 *  - a plan and its slots are read only, so that threads may share them.
 */
#ifndef STREAMREC_DECODE_CORE_H
#define STREAMREC_DECODE_CORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the decoder copies little-endian floats as they are; big-endian machines are not supported"
#endif

/* The number of a kind is that of its list's field in a Feature. */
enum { DECODE_BYTES = 1, DECODE_FLOAT = 2, DECODE_INT64 = 3 };

/* Why a walk ended; streamrec/example/walk.py has the same numbers. */
enum {
    DECODE_OK = 0,
    DECODE_MESSAGE = 1,
    DECODE_KIND = 2,
    DECODE_LIST = 3,
    DECODE_COUNT = 4,
    DECODE_MISSING = 5,
    DECODE_NO_MEMORY = 6,
};

/* Bytes of a number of this kind. */
static inline int64_t
decode_width(int kind)
{
    return kind == DECODE_FLOAT ? 4 : 8;
}

typedef struct {
    const uint8_t *data; /* NULL: there is none */
    int64_t size;
} decode_slice;

/* One key to look for: walk.py's Slot. */
typedef struct {
    decode_slice key;
    const void *fill; /* dense numbers: `size` values where a record has none, NULL leaves them to the caller; padded
                       * ones: what stands behind the values of a record that has fewer than another */
    int64_t size;
    uint8_t kind;
    uint8_t dense;
    uint8_t padded; /* numbers that are not dense: they come as rows of one length, from decode_rows */
    uint8_t required;
    uint8_t empty_counts;
} decode_slot;

typedef struct {
    decode_slot *slots;
    int64_t count;
    int32_t *table; /* open addressing: index of a slot, or -1 */
    uint64_t mask;
} decode_plan;

/* Memory from malloc that grows; the caller frees `data`. */
typedef struct {
    uint8_t *data;
    int64_t used; /* bytes */
    int64_t capacity;
} decode_buffer;

/* Where one slot's values go. Zero it, and set what the slot needs. */
typedef struct {
    void *dense;          /* dense numbers: room for `size` values for each record, from the caller */
    int64_t *ends;        /* other slots, not padded: room for one more than there are records, from the caller */
    decode_buffer values; /* numbers of other slots; of bytes, dense or not, decode_slices into the records; of padded
                           * slots a decode_slice for each record's Feature */
    int64_t longest;      /* padded slots: the most values that a record has */
    decode_buffer inner;  /* feature lists: int64, where each step's values end; the leading 0 is included */
} decode_column;

typedef struct {
    int code;
    int64_t record;
    int64_t slot;  /* -1 where no feature is to blame */
    int64_t found; /* DECODE_KIND: the kind found, 0 if none; DECODE_COUNT: of values; DECODE_OK: of keys without a slot */
    int list;      /* whether `slot` is one of the feature lists */
} decode_failure;

/* Fills `table` (of a power of two above the number of slots) and `mask`. */
void decode_plan_index(decode_plan *plan, int32_t *table, uint64_t size);

/* Walks over `count` Example messages. Returns DECODE_OK, or the code that `failure` explains; the columns'
 * buffers are the caller's to free in either case. */
int decode_examples(const decode_plan *plan, const decode_slice *records, int64_t count, decode_column *columns,
                    decode_failure *failure);

/* The same for SequenceExamples, which have no padded slots: the context's slots and columns, and the feature lists'. */
int decode_sequences(const decode_plan *context, const decode_plan *lists, const decode_slice *records,
                     int64_t count, decode_column *context_columns, decode_column *list_columns,
                     decode_failure *failure);

/* The values of a padded slot, which decode_examples has counted: a row of `longest` for each of `count` records, while
 * these live; `target` is aligned to eight bytes. Returns DECODE_OK, DECODE_NO_MEMORY, or, where somebody wrote to the
 * records meanwhile, another code. */
int decode_rows(const decode_slot *slot, decode_column *column, int64_t count, uint8_t *target);

#endif
