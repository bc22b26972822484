/* link.c: the connection to the arbiter and the slots it gave us.
 *
 * One SOCK_SEQPACKET connection per process, made at the first need. One mutex keeps a question and its answer
 * together; a dead connection is closed, and link_revive() builds a new one with a jittered back-off, attaches every
 * slot again and restores the ledger before anybody else may speak.
 *
 * A process that only asks, for memory or for processes, attaches as a viewer: no answers of it are waited for and it has
 * no helper thread, which in a program that uses NVML alone would have to load the driver. Its first context, allocation
 * or launch attaches it again, in full.
 *
 * The descriptor is the program's to close, as daemons do with all they find, and its number then the program's to use
 * again. So before each use the file behind it is compared with the socket that was connected.
 */
#include "slot.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define UNREACHED_NS 1000000000u
#define CROWDED_NS 1000000000ull /* until a process that was one too many asks again; twice as long each time */
#define CROWDED_MOST 6

struct counters aliquot_counters;
static struct slot slots[MAX_SLOTS];
static _Atomic unsigned slot_count;
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER, link_lock = PTHREAD_MUTEX_INITIALIZER,
                       revive_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int link_fd = -1;
static _Atomic unsigned crowded; /* refusals in a row of one process too many */
static _Atomic int reviver;      /* the thread that may speak while the slots are attached again */
static _Atomic uint64_t next_try_ns, sequence, boot_id, features, reported;

static struct {
    dev_t device;
    ino_t inode;
} connected; /* the file behind link_fd */

/* With link_lock held: the descriptor, -1: none, or the program has closed it. */
static int link_open(void)
{
    struct stat file;
    int fd = atomic_load(&link_fd);
    if (fd >= 0 && (fstat(fd, &file) != 0 || file.st_dev != connected.device || file.st_ino != connected.inode)) {
        atomic_store(&link_fd, -1);
        fd = -1;
    }
    return fd;
}

static void link_close(void)
{
    int fd = link_open();
    atomic_store(&link_fd, -1);
    if (fd >= 0)
        close(fd);
}

static void link_drop(void)
{
    pthread_mutex_lock(&link_lock);
    link_close();
    pthread_mutex_unlock(&link_lock);
}

bool link_crowded(void) { return atomic_load(&crowded) != 0; }

static void note_crowded(const aliquot_message *refusal)
{
    unsigned times = atomic_load(&crowded);
    if (refusal->type != ALIQUOT_MSG_REFUSED || refusal->a != ALIQUOT_REFUSAL_TOO_MANY)
        return;
    atomic_store(&next_try_ns, now_ns() + (CROWDED_NS << times));
    atomic_store(&crowded, times < CROWDED_MOST ? times + 1 : CROWDED_MOST);
    say_crowded((unsigned)refusal->b);
}

static bool may_speak(void)
{
    int only = atomic_load(&reviver);
    return atomic_load(&link_fd) >= 0 && (only == 0 || only == (int)syscall(SYS_gettid));
}

/* With link_lock held, which may have been waited for while another thread made a new connection: that is the reviver's
 * until all is attached. */
static int link_to_speak_on(void) { return may_speak() ? link_open() : -1; }

bool link_alive(void)
{
    char byte;
    if (!may_speak())
        return atomic_load(&reviver) != 0;
    if (pthread_mutex_trylock(&link_lock) != 0)
        return true;
    int fd = link_open();
    ssize_t got = fd < 0 ? 0 : recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    bool alive = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    if (!alive)
        link_close();
    pthread_mutex_unlock(&link_lock);
    return alive;
}

bool link_shares(void) { return atomic_load(&features) & ALIQUOT_WELCOME_SHARE; }

bool link_send(const aliquot_message *message)
{
    if (!may_speak())
        return false;
    pthread_mutex_lock(&link_lock);
    int fd = link_to_speak_on();
    bool sent = fd >= 0 && send(fd, message, sizeof *message, MSG_NOSIGNAL) == (ssize_t)sizeof *message;
    if (fd >= 0 && !sent)
        link_close();
    pthread_mutex_unlock(&link_lock);
    return sent;
}

static bool receive(int fd, aliquot_message *answer, int *passed)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {answer, sizeof *answer};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    bool reset = false; /* the arbiter has hung up; what it said before comes after this */
    do {
        reset = !reset;
        got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && reset)));
    int new_fd = -1;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); got > 0 && part; part = CMSG_NXTHDR(&header, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            memcpy(&new_fd, CMSG_DATA(part), sizeof new_fd);
    if (passed)
        *passed = new_fd;
    else if (new_fd >= 0)
        close(new_fd);
    return got == (ssize_t)sizeof *answer;
}

/* Sends `message` and reads the answer into it. False: no connection, or the answer is not `expect` nor REFUSED. */
static bool ask(aliquot_message *message, uint16_t expect, int *passed)
{
    pthread_mutex_lock(&link_lock);
    int fd = link_to_speak_on();
    uint64_t seq = message->seq = atomic_fetch_add(&sequence, 1) + 1;
    bool good = fd >= 0 && send(fd, message, sizeof *message, MSG_NOSIGNAL) == (ssize_t)sizeof *message;
    if (fd >= 0 && !good && message->type == ALIQUOT_MSG_HELLO)
        good = errno == EPIPE || errno == ECONNRESET; /* it may have said why */
    for (int strays = 0; good && strays < 16; strays++) {
        good = receive(fd, message, passed);
        if (good && (message->type == expect || message->type == ALIQUOT_MSG_REFUSED) &&
            (message->seq == seq || message->seq == 0))
            break;
    }
    if (fd >= 0 && !good)
        link_close();
    pthread_mutex_unlock(&link_lock);
    return good && (message->type == expect || message->type == ALIQUOT_MSG_REFUSED);
}

bool link_ask(aliquot_message *message, uint16_t expect, int *passed)
{
    return may_speak() && ask(message, expect, passed);
}

static bool connect_once(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(aliquot_conf.socket);
    if (length >= sizeof address.sun_path)
        return false;
    memcpy(address.sun_path, aliquot_conf.socket, length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    struct timeval patience = {2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return false;
    }
    struct stat file;
    if (fstat(fd, &file) != 0) {
        close(fd);
        return false;
    }
    pthread_mutex_lock(&link_lock);
    connected.device = file.st_dev;
    connected.inode = file.st_ino;
    atomic_store(&link_fd, fd);
    pthread_mutex_unlock(&link_lock);
    aliquot_message hello = {.type = ALIQUOT_MSG_HELLO, .a = ALIQUOT_ABI_VERSION, .c = (uint64_t)getpid()};
    if (!ask(&hello, ALIQUOT_MSG_WELCOME, NULL) || hello.type != ALIQUOT_MSG_WELCOME) {
        note_crowded(&hello);
        link_drop();
        return false;
    }
    atomic_store(&boot_id, hello.a);
    atomic_store(&features, hello.b);
    atomic_store(&reported, 0);
    return true;
}

void link_report(void)
{
    uint64_t unrouted = atomic_load_explicit(&aliquot_counters.disagreed, memory_order_relaxed);
    uint64_t ungated_ns = atomic_load_explicit(&aliquot_counters.ungated_ns, memory_order_relaxed);
    uint64_t stays = atomic_load_explicit(&aliquot_counters.stays, memory_order_relaxed);
    uint64_t all = unrouted + ungated_ns + (stays << 56);
    if (all == atomic_load_explicit(&reported, memory_order_relaxed))
        return;
    aliquot_message report = {.type = ALIQUOT_MSG_REPORT, .flags = (uint16_t)stays, .a = unrouted, .b = ungated_ns};
    if (link_send(&report))
        atomic_store(&reported, all);
}

bool link_report_longest(const struct slot *slot, uint64_t longest_ns)
{
    aliquot_message report = {.type = ALIQUOT_MSG_REPORT,
                              .gpu = slot->link.number,
                              .a = atomic_load_explicit(&aliquot_counters.disagreed, memory_order_relaxed),
                              .b = atomic_load_explicit(&aliquot_counters.ungated_ns, memory_order_relaxed),
                              .c = longest_ns};
    return link_send(&report);
}

/* Maps the slot's page; the caller holds slot->link.lock. */
static bool attach_locked(struct slot *slot)
{
    int fd = -1;
    bool launches = atomic_load(&slot->link.launches);
    aliquot_message message = {.type = ALIQUOT_MSG_ATTACH, .flags = launches ? 0 : ALIQUOT_ATTACH_VIEW};
    memcpy(message.uuid, slot->link.uuid, 16);
    if (!link_ask(&message, ALIQUOT_MSG_PAGE, &fd)) {
        atomic_store(&slot->link.state, SLOT_AWAY);
        return false;
    }
    if (message.type == ALIQUOT_MSG_REFUSED) {
        atomic_store(&slot->link.state, message.a == ALIQUOT_REFUSAL_NOT_YOURS ? SLOT_REFUSED : SLOT_AWAY);
        note_crowded(&message);
        if (link_crowded())
            link_drop();
        return false;
    }
    void *map = mmap(NULL, ALIQUOT_PAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    aliquot_page *page = map == MAP_FAILED ? NULL : map;
    if (!page || page->magic != ALIQUOT_PAGE_MAGIC || page->version != ALIQUOT_ABI_VERSION) {
        atomic_store(&slot->link.state, SLOT_AWAY);
        link_drop(); /* else nothing would attach it again, and an allocation would wait for that to no end */
        return false;
    }
    slot->link.number = message.gpu;
    aliquot_above.page_is_opening(slot, page_word(page));
    atomic_store(&slot->link.page, page); /* an older page stays mapped: another thread may be reading it */
    atomic_store(&slot->link.state, launches ? SLOT_HELD : SLOT_VIEWED);
    atomic_store(&crowded, 0);
    aliquot_above.page_is_open();
    return true;
}

bool link_revive(void)
{
    static uint64_t missing_since; /* under revive_lock; ~0: it was there once */
    uint64_t now = now_ns();
    if (may_speak() || now < atomic_load(&next_try_ns) || pthread_mutex_trylock(&revive_lock) != 0)
        return may_speak();
    aliquot_above.process_speaks();
    atomic_store(&reviver, (int)syscall(SYS_gettid));
    bool up = connect_once();
    for (unsigned i = 0; up && i < atomic_load(&slot_count); i++) {
        struct slot *slot = &slots[i];
        int state = atomic_load(&slot->link.state);
        if (state != SLOT_HELD && state != SLOT_AWAY && state != SLOT_VIEWED)
            continue;
        pthread_mutex_lock(&slot->link.lock);
        if (attach_locked(slot))
            aliquot_above.arbiter_is_new(slot);
        pthread_mutex_unlock(&slot->link.lock);
        COUNT(reconnects);
    }
    up = up && atomic_load(&link_fd) >= 0;
    if (up || !link_crowded())
        atomic_store(&next_try_ns, up ? 0 : now + 20000000u + (now >> 10) % 80000000u);
    if (missing_since == 0)
        missing_since = now;
    if (up || link_crowded())
        missing_since = ~0ull; /* a restart is not reported */
    else if (now > missing_since + UNREACHED_NS && missing_since != ~0ull)
        say_unreached();
    atomic_store(&reviver, 0);
    pthread_mutex_unlock(&revive_lock);
    return up;
}

static int attach_from(struct slot *slot, int from)
{
    link_revive();
    pthread_mutex_lock(&slot->link.lock);
    if (atomic_load(&slot->link.state) == from)
        attach_locked(slot);
    int state = atomic_load(&slot->link.state);
    pthread_mutex_unlock(&slot->link.lock);
    link_report();
    return state;
}

bool slot_attach(struct slot *slot)
{
    int state = atomic_load_explicit(&slot->link.state, memory_order_acquire);
    if (state == SLOT_HELD)
        return true;
    if (state == SLOT_REFUSED)
        return false;
    if (!atomic_exchange(&slot->link.launches, 1) || state == SLOT_KNOWN || state == SLOT_VIEWED) {
        state = attach_from(slot, state);
        aliquot_above.slot_is_attached(
            slot); /* a process that may hold the token must be able to answer when it is revoked */
    }
    if (state == SLOT_HELD)
        cpu_bind();
    return state == SLOT_HELD || state == SLOT_AWAY;
}

/* A viewer has no helper that would notice a new arbiter, so it looks each time. */
bool slot_view(struct slot *slot)
{
    int state = atomic_load_explicit(&slot->link.state, memory_order_acquire);
    if (state == SLOT_KNOWN)
        state = attach_from(slot, state);
    else if (!atomic_load(&slot->link.launches) && state != SLOT_REFUSED && !link_alive() && link_revive())
        state = atomic_load(&slot->link.state);
    return state == SLOT_HELD || state == SLOT_VIEWED || state == SLOT_AWAY;
}

static struct slot *add_slot(const uint8_t uuid[16], int device)
{
    pthread_mutex_lock(&slots_lock);
    unsigned count = atomic_load(&slot_count), i = 0;
    while (i < count && memcmp(slots[i].link.uuid, uuid, 16) != 0)
        i++;
    struct slot *slot = i < MAX_SLOTS ? &slots[i] : NULL;
    if (slot && i == count) {
        memcpy(slot->link.uuid, uuid, 16);
        slot->link.device = -1;
        pthread_mutex_init(&slot->link.lock, NULL);
        aliquot_above.slot_is_made(slot);
        atomic_store(&slot->link.state, SLOT_KNOWN);
        atomic_store_explicit(&slot_count, count + 1, memory_order_release);
    }
    if (slot && device >= 0)
        slot->link.device = device;
    pthread_mutex_unlock(&slots_lock);
    return slot;
}

struct slot *slot_at(unsigned index)
{
    return index < atomic_load_explicit(&slot_count, memory_order_acquire) ? &slots[index] : NULL;
}

struct slot *slot_of_uuid(const uint8_t uuid[16]) { return add_slot(uuid, -1); }

struct slot *slot_of_device(int device)
{
    for (unsigned i = 0; i < atomic_load_explicit(&slot_count, memory_order_acquire); i++)
        if (slots[i].link.device == device)
            return &slots[i];
    uint8_t uuid[16] = {0};
    if (REAL(cuDeviceGetUuid_v2, void *, int)(uuid, device) != CUDA_SUCCESS &&
        REAL(cuDeviceGetUuid, void *, int)(uuid, device) != CUDA_SUCCESS)
        return NULL;
    return add_slot(uuid, device);
}

struct slot *slot_current(void)
{
    int device = -1;
    if (conf_load() != MODE_HELD || REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS)
        return NULL;
    struct slot *slot = slot_of_device(device);
    return slot && slot_attach(slot) ? slot : NULL;
}

void link_after_fork(void)
{
    pthread_mutex_init(&link_lock, NULL);
    pthread_mutex_init(&slots_lock, NULL);
    pthread_mutex_init(&revive_lock, NULL);
    link_close();
    atomic_store(&reviver, 0);
    atomic_store(&next_try_ns, 0);
    atomic_store(&crowded, 0);
    memset(slots, 0, sizeof slots);
    atomic_store(&slot_count, 0);
}

bool link_is_own(const struct slot *slot, unsigned pid)
{
    enum { ROOM = sizeof((aliquot_page *)0)->processes / sizeof(uint32_t) };
    const aliquot_page *page = atomic_load(&slot->link.page);
    unsigned count = page ? __atomic_load_n(&page->process_count, __ATOMIC_RELAXED) : 0;
    for (unsigned i = 0; i < count && i < ROOM; i++)
        if (__atomic_load_n(&page->processes[i], __ATOMIC_RELAXED) == pid)
            return true;
    return pid == (unsigned)getpid();
}
