/* ledger.c: what is charged for which pointer or handle.
 *
 * Open addressing in anonymous memory of our own (the application's malloc may be calling us), doubled when half full.
 * Removal moves later entries up, so there are no tombstones.
 */
#include "slot.h"

#include <string.h>
#include <sys/mman.h>

static struct ledger_entry *table;
static uint64_t capacity, used, counts[LEDGER_KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t home(uint32_t kind, uint64_t key)
{
    uint64_t hash = (key ^ ((uint64_t)kind << 57)) * 0x9E3779B97F4A7C15ull;
    return (hash >> 20) & (capacity - 1);
}

static struct ledger_entry *find(uint32_t kind, uint64_t key)
{
    if (!capacity)
        return NULL;
    for (uint64_t i = home(kind, key); table[i].kind; i = (i + 1) & (capacity - 1))
        if (table[i].kind == kind && table[i].key == key)
            return &table[i];
    return NULL;
}

static void place(const struct ledger_entry *entry)
{
    uint64_t i = home(entry->kind, entry->key);
    while (table[i].kind)
        i = (i + 1) & (capacity - 1);
    table[i] = *entry;
    used++;
    counts[entry->kind]++;
}

static bool grow(void)
{
    struct ledger_entry *old = table;
    uint64_t old_capacity = capacity, new_capacity = capacity ? capacity * 2 : 1024;
    void *map = mmap(NULL, new_capacity * sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return false;
    table = map;
    capacity = new_capacity;
    used = 0;
    memset(counts, 0, sizeof counts);
    for (uint64_t i = 0; i < old_capacity; i++)
        if (old[i].kind)
            place(&old[i]);
    if (old)
        munmap(old, old_capacity * sizeof *old);
    return true;
}

static void removed(struct ledger_entry *entry)
{
    uint64_t hole = (uint64_t)(entry - table), i = hole;
    counts[entry->kind]--;
    for (;;) {
        i = (i + 1) & (capacity - 1);
        if (!table[i].kind)
            break;
        uint64_t wish = home(table[i].kind, table[i].key);
        if (((i - wish) & (capacity - 1)) >= ((i - hole) & (capacity - 1))) {
            table[hole] = table[i];
            hole = i;
        }
    }
    memset(&table[hole], 0, sizeof table[hole]);
    used--;
}

/* Every entry is found where its key leads, and is counted. With the lock held. */
static bool ledger_is_valid(void)
{
    uint64_t entries = 0, counted = 0;
    for (uint64_t i = 0; i < capacity; i++)
        if (table[i].kind) {
            entries++;
            if (table[i].kind >= LEDGER_KINDS || find(table[i].kind, table[i].key) != &table[i])
                return false;
        }
    for (unsigned kind = 0; kind < LEDGER_KINDS; kind++)
        counted += counts[kind];
    return entries == used && counted == used && used * 2 <= capacity;
}

static bool room(void) { return used * 2 < capacity || grow(); }

static bool ends_with_context(uint32_t kind)
{
    return kind == LEDGER_POINTER || kind == LEDGER_SMALL || kind == LEDGER_ARRAY || kind == LEDGER_MODULE ||
           kind == LEDGER_LIMIT || kind == LEDGER_LATER || kind == LEDGER_CODE;
}

/* Its context is gone, and the driver has freed it with that. */
static bool orphaned(const struct ledger_entry *entry)
{
    return entry->other && ends_with_context(entry->kind) && !find(LEDGER_OWNER, entry->other);
}

bool ledger_put(struct ledger_entry entry, struct ledger_entry *stale)
{
    pthread_mutex_lock(&lock);
    bool late = orphaned(&entry);
    struct ledger_entry *old = late ? &entry : find(entry.kind, entry.key);
    bool good = old || room();
    if (stale)
        *stale = old ? *old : (struct ledger_entry){0};
    if (old)
        *old = entry;
    else if (good)
        place(&entry);
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return good;
}

bool ledger_join(struct ledger_entry entry)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *old = find(entry.kind, entry.key);
    bool made = !old && !orphaned(&entry);
    if (old)
        old->refs++;
    else if (made && room())
        place(&entry);
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return made;
}

bool ledger_get(uint32_t kind, uint64_t key, struct ledger_entry *out)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    if (entry)
        *out = *entry;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

bool ledger_take(uint32_t kind, uint64_t key, struct ledger_entry *out)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    if (entry) {
        *out = *entry;
        removed(entry);
    }
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

bool ledger_take_of(uint32_t kind, uint64_t key, uint64_t other)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    bool its = entry && entry->other == other;
    if (its)
        removed(entry);
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return its;
}

void ledger_disown(uint32_t kind, uint64_t key)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    if (entry)
        entry->other = 0;
    pthread_mutex_unlock(&lock);
}

/* From the beginning each time: others move entries and make the table larger between two calls. */
unsigned ledger_take_owned(uint64_t owner, struct ledger_entry *out, unsigned room)
{
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < capacity && count < room;) {
        if (table[i].other != owner || !ends_with_context(table[i].kind)) {
            i++;
            continue;
        }
        out[count++] = table[i];
        removed(&table[i]); /* and look again: a later entry may have moved here */
    }
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return count;
}

void ledger_page(uint32_t kind, uint64_t key, uint64_t page)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    if (entry)
        entry->page = page;
    pthread_mutex_unlock(&lock);
}

enum ledger_answer ledger_change(uint32_t kind, uint64_t key, int refs, uint64_t bytes, struct ledger_entry *out)
{
    pthread_mutex_lock(&lock);
    struct ledger_entry *entry = find(kind, key);
    enum ledger_answer answer = entry ? LEDGER_KEPT : LEDGER_NONE;
    if (entry) {
        entry->refs += (uint32_t)refs;
        entry->bytes += bytes;
        *out = *entry;
        if (entry->refs == 0) {
            removed(entry);
            answer = LEDGER_GONE;
        }
    }
    CHECK(2, ledger_is_valid());
    pthread_mutex_unlock(&lock);
    return answer;
}

/* The visitor runs under the ledger's lock and must not come back here. */
void ledger_each(uint32_t kind, void (*visit)(struct ledger_entry *, void *), void *with)
{
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0, left = counts[kind]; left; i++)
        if (table[i].kind == kind) {
            visit(&table[i], with);
            left--;
        }
    pthread_mutex_unlock(&lock);
}

uint64_t ledger_count(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = used;
    pthread_mutex_unlock(&lock);
    return count;
}

/* In the child of a fork: nothing is held there. */
void ledger_clear(void)
{
    pthread_mutex_init(&lock, NULL);
    if (table)
        memset(table, 0, capacity * sizeof *table);
    memset(counts, 0, sizeof counts);
    used = 0;
}
