/* A pseudorandom permutation of the numbers below any size: number i is permuted without the others, in no memory.
 *
 * A Feistel network over two digits. With s half of the bits of size - 1, rounded up, a number is its lower s bits and
 * what is above them, from 0 to b = ceil(size / 2**s), exclusive. Each round adds a hash of one digit to the other,
 * modulo b or 2**s: a bijection of the numbers below b * 2**s, whatever the hash. What is not below `size` then goes
 * through once more, until it is ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002):
 * a bijection of those below `size`. b * 2**s is less than size + 2**s, so few numbers do.
 */
#include "support/args.h"
#include "support/block.h"

#define MAX_ROUNDS 64
#define MAX_SIZE ((int64_t)1 << 62)
#define TOGETHER 8 /* numbers that go through the network at the same time: see `pass` */

/* The finalizer of MurmurHash3 (Austin Appleby, 2011; public domain). */
static inline uint64_t
hash(uint64_t word)
{
    word = (word ^ (word >> 33)) * 0xFF51AFD7ED558CCDu;
    word = (word ^ (word >> 33)) * 0xC4CEB9FE1A85EC53u;
    return word ^ (word >> 33);
}

struct network {
    uint64_t keys[MAX_ROUNDS];
    Py_ssize_t rounds;
};

/* The digits of numbers of some sizes, and which permutation each goes through. */
struct group {
    uint64_t low[TOGETHER], high[TOGETHER];
    uint64_t mask[TOGETHER];  /* of the lower digit */
    uint64_t above[TOGETHER]; /* how many values the upper digit has */
    uint64_t size[TOGETHER];
    uint64_t tweak[TOGETHER];
    int bits[TOGETHER];       /* of the lower digit */
    Py_ssize_t at[TOGETHER];  /* the index of the number */
};

/* Puts a number into a place of a group. */
static inline void
set_number(struct group *group, int place, uint64_t number)
{
    group->low[place] = number & group->mask[place];
    group->high[place] = number >> group->bits[place];
}

static inline void
set_size(struct group *group, int place, uint64_t size)
{
    int bits = 0;
    while (bits < 64 && (size - 1) >> bits) {
        bits++;
    }
    bits = (bits + 1) / 2;
    group->size[place] = size;
    group->bits[place] = bits;
    group->mask[place] = ((uint64_t)1 << bits) - 1;
    group->above[place] = ((size - 1) >> bits) + 1;
}

/* All numbers of a group once through the network. Each step of a hash waits for the one before it: for several numbers
 * at a time the processor takes hardly longer than for one. */
static inline void
pass(const struct network *network, struct group *group)
{
    for (Py_ssize_t round = 0; round < network->rounds; round += 2) {
        for (int i = 0; i < TOGETHER; i++) {
            uint64_t above = group->above[i];
            uint64_t high =
                group->high[i] + ((hash((group->low[i] + group->tweak[i]) ^ network->keys[round]) >> 32) * above >> 32);
            group->high[i] = high >= above ? high - above : high;
        }
        for (int i = 0; i < TOGETHER; i++) {
            uint64_t more = hash((group->high[i] + group->tweak[i]) ^ network->keys[round + 1]);
            group->low[i] = (group->low[i] + more) & group->mask[i];
        }
    }
}

/* Puts number i into a place of the group; returns 0 if the number or its size is out of range. */
static inline int
enter(struct group *group, int place, Py_ssize_t i, const Py_buffer *numbers, const Py_buffer *sizes,
            const Py_buffer *variants)
{
    int64_t number = int64_at(numbers->buf, i), size = int64_at(sizes->buf, sizes->shape[0] == 1 ? 0 : i);
    int64_t variant = int64_at(variants->buf, variants->shape[0] == 1 ? 0 : i);
    if (size < 1 || size > MAX_SIZE || number < 0 || number >= size) {
        return 0;
    }
    if ((uint64_t)size != group->size[place]) {
        set_size(group, place, (uint64_t)size);
    }
    group->tweak[place] = hash((uint64_t)variant * 0x9E3779B97F4A7C15u);
    group->at[place] = i;
    set_number(group, place, (uint64_t)number);
    return 1;
}

/* Permutes all; returns the index of a number that is out of its range, or whose size is, or `count`.
 *
 * A place of the group whose number has arrived takes the next one; at the end, places are empty: they have the number
 * 0 of size 1, at index `count`. */
static Py_ssize_t
permute_all(const struct network *network, const Py_buffer *numbers, const Py_buffer *sizes, const Py_buffer *variants,
            uint8_t *target)
{
    Py_ssize_t count = numbers->shape[0], next = 0, left = count;
    struct group group;
    for (int place = 0; place < TOGETHER; place++) {
        set_size(&group, place, 1);
        set_number(&group, place, 0);
        group.tweak[place] = 0;
        group.at[place] = count;
        if (next < count && !enter(&group, place, next++, numbers, sizes, variants)) {
            return next - 1;
        }
    }
    while (left > 0) {
        pass(network, &group);
        for (int place = 0; place < TOGETHER; place++) {
            uint64_t number = group.high[place] << group.bits[place] | group.low[place];
            if (group.at[place] == count) {
                continue;
            }
            if (number >= group.size[place]) {
                set_number(&group, place, number); /* once more */
                continue;
            }
            memcpy(target + 8 * group.at[place], &number, 8);
            left--;
            if (next == count) {
                group.at[place] = count;
            } else if (!enter(&group, place, next++, numbers, sizes, variants)) {
                return next - 1;
            }
        }
    }
    return count;
}

/* Whether there is one, or one for each number. */
static int
fits(const Py_buffer *values, Py_ssize_t count, const char *name)
{
    if (values->shape[0] == 1 || values->shape[0] == count) {
        return 1;
    }
    PyErr_Format(PyExc_ValueError, "%s are %zd for %zd numbers: wanted one, or as many", name, values->shape[0], count);
    return 0;
}

static PyObject *
permute(const Py_buffer *numbers, const Py_buffer *sizes, const Py_buffer *variants, const Py_buffer *keys)
{
    struct network network;
    network.rounds = keys->shape[0];
    if (network.rounds > MAX_ROUNDS || network.rounds % 2) {
        return PyErr_Format(PyExc_ValueError, "keys are %zd: wanted an even number, %d at the most", network.rounds,
                            MAX_ROUNDS);
    }
    memcpy(network.keys, keys->buf, 8 * (size_t)network.rounds);
    Py_ssize_t count = numbers->shape[0], done;
    if (!fits(sizes, count, "sizes") || !fits(variants, count, "variants")) {
        return NULL;
    }
    uint8_t *target = NULL;
    PyObject *result = block_or_bytes(8 * count, &target);
    if (result == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    done = permute_all(&network, numbers, sizes, variants, target);
    Py_END_ALLOW_THREADS
    if (done < count) {
        Py_DECREF(result);
        return PyErr_Format(PyExc_ValueError, "number %zd or its size is out of range: wanted 0 <= number < size <= 2**62",
                            done);
    }
    return result;
}

static PyObject *
py_permute(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"numbers", "sizes", "variants", "keys", NULL};
    Py_buffer numbers, sizes, variants, keys;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&O&:permute", names, take_row_splits, &numbers, take_row_splits,
                                     &sizes, take_row_splits, &variants, take_row_splits, &keys)) {
        return NULL;
    }
    PyObject *result = permute(&numbers, &sizes, &variants, &keys);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&variants);
    PyBuffer_Release(&keys);
    return result;
}

PyMethodDef permute_methods[] = {
    {"permute", KEYWORD_FUNCTION(py_permute), KEYWORDS,
     "permute(numbers, sizes, variants, keys)\n--\n\nWhere a permutation of the numbers below a size takes each."},
    {NULL, NULL, 0, NULL},
};
