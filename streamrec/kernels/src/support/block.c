/* Blocks: memory for megabytes of records, which is used again instead of given back.
 *
 * Every block that is read into, gathered into or joined in lives for milliseconds. The C library gives large
 * freed memory back to the kernel, and the kernel clears each page again on its first use: measured, gathering
 * into fresh memory runs at less than half the speed of gathering into memory that was used before. So a Block
 * that dies leaves its memory here, and the next one of its size takes it.
 *
 * How much is kept: living Blocks and free memory together hold up to KEEP_BYTES more than Blocks held at the most a
 * short time ago. A consumer that is slower than the source lets a queue of tens of megabytes fill up in a moment, and
 * empties it little by little: what was in use at the top of that wave is wanted again by the next one.
 *
 * Where no Block lives any more, KEEP_BYTES stay, and what is beyond them is lent to the kernel (MADV_FREE): it takes
 * these pages when it is short of memory, and who wants them again before that has them at no cost. An epoch that fills
 * its shuffle buffer anew wants hundreds of megabytes, which took longer to clear than to copy. Where the system cannot
 * be lent memory, it is given back.
 *
 * A Block is an object of the buffer protocol and nothing else. It lives as long as anything refers to it, so
 * no memory is ever used again while somebody can see it. The GIL guards the lists.
 */
#include "support/block.h"
#include "support/args.h"

#include <stdlib.h>

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(STREAMREC_PORTABLE)
#include <sys/mman.h>
#define MAPS_MEMORY 1
#endif

#define SMALLEST ((size_t)BLOCK_SMALLEST)
#define LARGEST ((size_t)64 << 20)    /* above this, nothing is kept */
#define KEEP_BYTES ((size_t)32 << 20) /* of free memory beyond what was in use a short time ago */
#define SHORT_TIME 512                /* in Blocks that are made; what was in use in this time and the one before counts */
#define HUGE_PAGE ((size_t)2 << 20)
#define PAGE ((size_t)64 << 10)       /* the largest that Linux has anywhere: 4 KiB on x86, up to 64 KiB on ARM */
#define MAPPED ((size_t)256 << 10)    /* from here on memory is mapped, and unmapped when it is given back */
#define CLASSES 22                    /* two sizes in each doubling, from SMALLEST to LARGEST: few, or each had its reserve */
#define LARGER 1                      /* memory of so many sizes above will do too */

struct block {
    PyObject_HEAD
    uint8_t *memory;
    size_t capacity;
    Py_ssize_t size;
    int class; /* index of its list, or -1: never kept */
};

struct free_memory {
    struct free_memory *next;
    uint8_t *memory;
    int lent; /* to the kernel, which may have taken its pages */
};

static struct free_memory *lists[CLASSES];
static size_t kept_bytes;
static size_t used_bytes;           /* of living Blocks of these classes */
static size_t most_now, most_before; /* what that was at the most: in this short time, and in the one before */
static unsigned made;
static unsigned taken[CLASSES];      /* what `made` was when a class was wanted last */
static PyTypeObject *block_type;

/* The list for blocks of at least `size` bytes, and the capacity that they all have; -1 for none. */
static int
class_of(size_t size, size_t *capacity)
{
    *capacity = size;
    if (size < SMALLEST || size > LARGEST) {
        return -1;
    }
    int class = 0;
    for (size_t base = SMALLEST;; base *= 2) {
        for (size_t half = 2; half < 4; half++, class++) {
            if (size <= base / 2 * half) {
                *capacity = base / 2 * half;
                return class;
            }
        }
    }
}

static size_t
capacity_of(int class)
{
    return (SMALLEST << class / 2) / 2 * (size_t)(2 + class % 2);
}

#ifdef MAPS_MEMORY
/* Memory straight from the kernel: the C library would keep most of what is freed between blocks that live on (measured:
 * 120 to 170 MB of a process that held 150 MB of blocks). As much of it as can be is huge pages. */
static size_t
mapped_bytes(size_t capacity)
{
    return (capacity + PAGE - 1) / PAGE * PAGE;
}

static uint8_t *
fresh_memory(size_t capacity)
{
    if (capacity < MAPPED) {
        return malloc(capacity ? capacity : 1);
    }
    size_t whole = mapped_bytes(capacity), more = capacity >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *memory = mmap(NULL, whole + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    if (more) {
        size_t before = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
        if (before) {
            munmap(memory, before);
        }
        memory += before;
        munmap(memory + whole, more - before);
        madvise(memory, whole, MADV_HUGEPAGE); /* only advice: without it, pages are small */
    }
    return memory;
}

static void
free_memory(uint8_t *memory, size_t capacity)
{
    if (capacity < MAPPED) {
        free(memory);
    } else {
        munmap(memory, mapped_bytes(capacity));
    }
}

/* Whether the kernel may take these pages from now on, until they are written to. */
static int
lend(uint8_t *memory, size_t capacity)
{
    return capacity >= MAPPED && madvise(memory, mapped_bytes(capacity), MADV_FREE) == 0;
}
#else
static uint8_t *
fresh_memory(size_t capacity)
{
    return malloc(capacity ? capacity : 1);
}

static void
free_memory(uint8_t *memory, size_t capacity)
{
    (void)capacity;
    free(memory);
}

static int
lend(uint8_t *memory, size_t capacity)
{
    (void)memory, (void)capacity;
    return 0;
}
#endif

/* Takes the first memory out of a list. */
static uint8_t *
pop(struct free_memory **list, size_t capacity)
{
    struct free_memory *first = *list;
    uint8_t *memory = first->memory;
    *list = first->next;
    kept_bytes -= capacity;
    free(first);
    return memory;
}

/* Puts memory into its list, or gives it back where there is no room for the note. */
static void
push(uint8_t *memory, size_t capacity, int class)
{
    struct free_memory *first = malloc(sizeof *first);
    if (first == NULL) {
        free_memory(memory, capacity);
        return;
    }
    *first = (struct free_memory){lists[class], memory, 0};
    lists[class] = first;
    kept_bytes += capacity;
}

static void
count_use(size_t capacity)
{
    used_bytes += capacity;
    most_now = used_bytes > most_now ? used_bytes : most_now;
    if (++made % SHORT_TIME == 0) {
        most_before = most_now;
        most_now = used_bytes;
    }
}

/* The class of free memory that was not wanted for the longest time, or -1. */
static int
stalest(void)
{
    int found = -1;
    for (int class = 0; class < CLASSES; class++) {
        if (lists[class] != NULL && (found < 0 || made - taken[class] >= made - taken[found])) {
            found = class;
        }
    }
    return found;
}

/* Gives free memory back until no more is held than should be. */
static void
give_back(void)
{
    size_t limit = (most_now > most_before ? most_now : most_before) + KEEP_BYTES;
    while (kept_bytes > 0 && used_bytes + kept_bytes > limit) {
        int class = stalest();
        free_memory(pop(&lists[class], capacity_of(class)), capacity_of(class));
    }
}

/* No Block lives: KEEP_BYTES of free memory stay, the smallest first; the kernel may take the rest. What was lent before
 * stands behind what was not. */
static void
lend_rest(void)
{
    size_t stays = 0;
    for (int class = 0; class < CLASSES; class++) {
        size_t capacity = capacity_of(class);
        struct free_memory **list = &lists[class];
        while (*list != NULL && !(*list)->lent) {
            if (stays + capacity <= KEEP_BYTES) {
                stays += capacity;
                list = &(*list)->next;
            } else if (lend((*list)->memory, capacity)) {
                (*list)->lent = 1;
                list = &(*list)->next;
            } else {
                free_memory(pop(list, capacity), capacity);
            }
        }
    }
}

static uint8_t *
take_memory(size_t size, size_t *capacity, int *class)
{
    *class = class_of(size, capacity);
    uint8_t *memory = NULL;
    for (int other = *class; other >= 0 && other < CLASSES && other <= *class + LARGER && memory == NULL; other++) {
        if (lists[other] != NULL) {
            *class = other;
            *capacity = capacity_of(other);
            memory = pop(&lists[other], *capacity);
        }
    }
    if (memory == NULL) {
        memory = fresh_memory(*capacity);
    }
    if (*class >= 0 && memory != NULL) {
        taken[*class] = made;
        count_use(*capacity);
        give_back();
    }
    return memory;
}

static void
leave_memory(uint8_t *memory, size_t capacity, int class)
{
    if (class < 0) {
        free_memory(memory, capacity);
        return;
    }
    push(memory, capacity, class);
    used_bytes -= capacity;
    give_back();
    if (used_bytes == 0 && kept_bytes > KEEP_BYTES) {
        lend_rest();
    }
}

PyObject *
block_new(Py_ssize_t size)
{
    struct block *block = PyObject_New(struct block, block_type);
    if (block == NULL) {
        return NULL;
    }
    block->size = size;
    block->memory = take_memory((size_t)size, &block->capacity, &block->class);
    if (block->memory == NULL) {
        Py_DECREF(block);
        return PyErr_NoMemory();
    }
    return (PyObject *)block;
}

PyObject *
block_for_rows(Py_ssize_t rows, Py_ssize_t elements, Py_ssize_t width)
{
    Py_ssize_t size;
    if (__builtin_mul_overflow(rows, elements, &size) || __builtin_mul_overflow(size, width, &size)) {
        return PyErr_NoMemory();
    }
    return block_new(size);
}

uint8_t *
block_memory(PyObject *block)
{
    return ((struct block *)block)->memory;
}

void
block_shrink(PyObject *block, Py_ssize_t size)
{
    ((struct block *)block)->size = size;
}

PyObject *
block_or_bytes(Py_ssize_t size, uint8_t **memory)
{
    PyObject *object = size < BLOCK_SMALLEST ? PyBytes_FromStringAndSize(NULL, size) : block_new(size);
    if (object != NULL) {
        *memory = size < BLOCK_SMALLEST ? (uint8_t *)PyBytes_AsString(object) : block_memory(object);
    }
    return object;
}

static void
block_dealloc(PyObject *self)
{
    struct block *block = (struct block *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (block->memory != NULL) {
        leave_memory(block->memory, block->capacity, block->class);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
block_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct block *block = (struct block *)self;
    return PyBuffer_FillInfo(view, self, block->memory, block->size, 0, flags);
}

static Py_ssize_t
block_length(PyObject *self)
{
    return ((struct block *)self)->size;
}

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "Writable bytes whose memory is used again when they are gone."},
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_getbuffer},
    {Py_sq_length, block_length},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "streamrec.kernels._native.Block",
    .basicsize = sizeof(struct block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

int
block_add_type(PyObject *module)
{
    (void)module;
    if (block_type == NULL) {
        block_type = (PyTypeObject *)PyType_FromSpec(&block_spec);
    }
    return block_type == NULL ? -1 : 0;
}

static PyObject *
py_allocate(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size", NULL};
    (void)module;
    Py_ssize_t size;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:allocate", names, &size)) {
        return NULL;
    }
    if (size < 0) {
        return PyErr_Format(PyExc_ValueError, "size is %zd: wanted 0 or more", size);
    }
    return block_new(size);
}

static PyObject *
py_copy_bytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"target", "source", NULL};
    (void)module;
    Py_buffer target, source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*O&:copy_bytes", names, &target, take_buffer, &source)) {
        return NULL;
    }
    int fits = source.len == target.len;
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "%zd bytes where %zd are expected", source.len, target.len);
    } else if (source.len > 0) { /* an empty buffer may have no address, which memcpy must not see */
        PyThreadState *released = source.len >= GIL_BYTES ? PyEval_SaveThread() : NULL;
        memcpy(target.buf, source.buf, (size_t)source.len);
        if (released != NULL) {
            PyEval_RestoreThread(released);
        }
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    return fits ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef block_methods[] = {
    {"allocate", KEYWORD_FUNCTION(py_allocate), KEYWORDS,
     "allocate(size)\n--\n\nWritable bytes of no particular content, in memory that is used again."},
    {"copy_bytes", KEYWORD_FUNCTION(py_copy_bytes), KEYWORDS,
     "copy_bytes(target, source)\n--\n\nCopies bytes into a buffer of the same size, many without the GIL."},
    {NULL, NULL, 0, NULL},
};
