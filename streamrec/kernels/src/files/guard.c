/* The guard of guard.h. The kernel sends SIGBUS to the thread that touches a page which cannot be read, whichever code
 * that runs, with the address; the handler puts a page of zeros there, and the instruction is done once more. X servers
 * and the systemd journal read files that others may cut off in the same way.
 *
 * The handler takes no lock and allocates nothing: mappings stand in tables of atomic numbers that are never freed. An
 * address that is in none of them goes to the handler that was there before.
 */
#include "files/guard.h"

#if (defined(__unix__) || defined(__APPLE__)) && !defined(__STDC_NO_ATOMICS__) && !defined(STREAMREC_PORTABLE)
#define CAN_GUARD 1
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#ifdef CAN_GUARD
enum { TABLE_SIZE = 1024 };

struct Guarded {
    _Atomic uintptr_t base;
    _Atomic size_t size; /* 0: nothing is guarded here */
    _Atomic(long long) lost; /* from the mapping's base to the first page that was lost; -1 for none */
    long long offset;
    PyObject *label;
    Guarded *next_free;
};

typedef struct Table {
    Guarded entries[TABLE_SIZE];
    struct Table *_Atomic next;
} Table;

static Table first_table;
static Guarded *free_entries;
static size_t entries_made;
static _Atomic size_t lost_mappings;
static struct sigaction earlier;
static size_t page_size;

static Guarded *
guarded_at(uintptr_t address)
{
    for (Table *table = &first_table; table != NULL; table = atomic_load(&table->next)) {
        for (size_t i = 0; i < TABLE_SIZE; i++) {
            Guarded *entry = &table->entries[i];
            size_t size = atomic_load(&entry->size);
            uintptr_t base = atomic_load(&entry->base);
            if (size != 0 && address - base < size && atomic_load(&entry->size) == size) {
                return entry;
            }
        }
    }
    return NULL;
}

static int
replace_page(Guarded *entry, uintptr_t address)
{
    uintptr_t page = address - address % page_size;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap((void *)page, page_size, PROT_READ, flags, -1, 0) == MAP_FAILED) {
        return 0;
    }
    long long none = -1;
    if (atomic_compare_exchange_strong(&entry->lost, &none, (long long)(page - atomic_load(&entry->base)))) {
        atomic_fetch_add(&lost_mappings, 1);
    }
    return 1;
}

/* Hands a signal that is not the guard's to whom it would have gone without it. */
static void
pass_on(int number, siginfo_t *info, void *context)
{
    if (earlier.sa_flags & SA_SIGINFO) {
        earlier.sa_sigaction(number, info, context);
    } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
        earlier.sa_handler(number);
    } else if (info->si_code > 0 || earlier.sa_handler == SIG_DFL) {
        signal(number, SIG_DFL); /* the instruction is done once more, and ends the process */
        if (info->si_code <= 0) {
            raise(number);
        }
    }
}

static void
on_bus_error(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    uintptr_t address = (uintptr_t)info->si_addr;
    Guarded *entry = info->si_code > 0 ? guarded_at(address) : NULL; /* sent by a process: there is no address */
    int replaced = entry != NULL && replace_page(entry, address);
    errno = kept;
    if (!replaced) {
        pass_on(number, info, context);
    }
}

int
guard_stands(void)
{
    struct sigaction now;
    if (page_size == 0) {
        struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        page_size = (size_t)sysconf(_SC_PAGESIZE);
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGBUS, &ours, &earlier) < 0) {
            return 0;
        }
    }
    return sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error;
}

/* An entry that guards nothing, of the last table; a new table where it is full. */
static Guarded *
new_entry(void)
{
    Table *last = &first_table;
    while (atomic_load(&last->next) != NULL) {
        last = atomic_load(&last->next);
    }
    if (entries_made != 0 && entries_made % TABLE_SIZE == 0) {
        Table *table = calloc(1, sizeof(Table));
        if (table == NULL) {
            return NULL;
        }
        atomic_store(&last->next, table);
        last = table;
    }
    return &last->entries[entries_made++ % TABLE_SIZE];
}

Guarded *
guard_begin(const void *base, size_t size, long long offset, PyObject *label)
{
    Guarded *entry = free_entries;
    if (entry != NULL) {
        free_entries = entry->next_free;
    } else if ((entry = new_entry()) == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    entry->offset = offset;
    entry->label = Py_NewRef(label);
    atomic_store(&entry->lost, -1);
    atomic_store(&entry->base, (uintptr_t)base);
    atomic_store(&entry->size, size); /* from here on */
    return entry;
}

void
guard_end(Guarded *entry)
{
    atomic_store(&entry->size, 0);
    if (atomic_load(&entry->lost) < 0) {
        entry->next_free = free_entries;
        free_entries = entry;
        Py_CLEAR(entry->label);
    }
}

PyObject *
guard_lost(void)
{
    PyObject *found = PyList_New(0);
    if (found == NULL || atomic_load(&lost_mappings) == 0) {
        return found;
    }
    size_t left = entries_made;
    for (Table *table = &first_table; table != NULL; table = atomic_load(&table->next)) {
        for (size_t i = 0; i < TABLE_SIZE && left > 0; i++, left--) {
            Guarded *entry = &table->entries[i];
            long long lost = atomic_load(&entry->lost);
            if (entry->label == NULL || lost < 0) {
                continue;
            }
            PyObject *one = Py_BuildValue("(OL)", entry->label, entry->offset + lost);
            int added = one == NULL ? -1 : PyList_Append(found, one);
            Py_XDECREF(one);
            if (added < 0) {
                Py_DECREF(found);
                return NULL;
            }
        }
    }
    return found;
}
#else
int
guard_stands(void)
{
    return 0;
}

Guarded *
guard_begin(const void *base, size_t size, long long offset, PyObject *label)
{
    (void)base, (void)size, (void)offset, (void)label;
    return NULL;
}

void
guard_end(Guarded *entry)
{
    (void)entry;
}

PyObject *
guard_lost(void)
{
    return PyList_New(0);
}
#endif
