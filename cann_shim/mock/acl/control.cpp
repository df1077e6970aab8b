#include "control.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace mock {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kFree = 0, kClaimed = 1, kInUse = 2;
constexpr int32_t kRankUnknown = -2;
std::atomic<int32_t> g_rank{kRankUnknown};

template <typename T>
std::atomic_ref<T> shared(T &field) {
    return std::atomic_ref<T>(field);
}

[[noreturn]] void give_up(const char *path, const char *what) {
    // A fault rule that is silently ignored would make every test that relies on it pass.
    std::fprintf(stderr, "mock: SEQSHIFT_MOCK_CONTROL=%s: %s: %s\n", path, what, std::strerror(errno));
    std::abort();
}

void *map_file(const char *path) {
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) give_up(path, "cannot open");
    struct stat info {};
    if (fstat(fd, &info) != 0) give_up(path, "cannot stat");
    constexpr auto bytes = static_cast<off_t>(sizeof(SeqshiftMockControl));
    // Growing twice to the same size is harmless, so processes that start together need no lock.
    if (info.st_size < bytes && ftruncate(fd, bytes) != 0) give_up(path, "cannot grow");
    void *address = mmap(nullptr, sizeof(SeqshiftMockControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) give_up(path, "cannot map");
    close(fd);
    return address;
}

SeqshiftMockControl *open_segment() {
    const char *path = std::getenv("SEQSHIFT_MOCK_CONTROL");
    if (path != nullptr && *path == '\0') path = nullptr;
    void *address = path != nullptr ? map_file(path)
                                    : mmap(nullptr, sizeof(SeqshiftMockControl), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) give_up("(none)", "cannot map");
    auto *segment = static_cast<SeqshiftMockControl *>(address);
    shared(segment->version).store(SEQSHIFT_MOCK_VERSION);
    shared(segment->bytes).store(sizeof(SeqshiftMockControl));
    uint64_t expected = 0;
    if (!shared(segment->magic).compare_exchange_strong(expected, SEQSHIFT_MOCK_MAGIC) &&
        expected != SEQSHIFT_MOCK_MAGIC) {
        errno = EINVAL;
        give_up(path, "is not a control segment");
    }
    return segment;
}

bool is_named(const SeqshiftMockCounter &counter, const char *name) {
    return std::strncmp(counter.name, name, SEQSHIFT_MOCK_NAME_BYTES) == 0;
}

int32_t find_slot(const char *name) {
    auto &counters = control().counters;
    for (int32_t index = 0; index < SEQSHIFT_MOCK_SYMBOLS; ++index) {
        auto &counter = counters[index];
        uint32_t state = kFree;
        if (shared(counter.state).compare_exchange_strong(state, kClaimed)) {
            std::strncpy(counter.name, name, SEQSHIFT_MOCK_NAME_BYTES - 1);
            shared(counter.state).store(kInUse);
            return index;
        }
        // A process killed between the two stores leaves a claimed slot: wait for it, but not for ever.
        for (int tries = 0; state == kClaimed && tries < 1000; ++tries) {
            std::this_thread::sleep_for(10us);
            state = shared(counter.state).load();
        }
        if (state == kInUse && is_named(counter, name)) return index;
    }
    return -2;
}

bool matches(const char *pattern, std::string_view name) {
    const std::string_view text(pattern, strnlen(pattern, SEQSHIFT_MOCK_NAME_BYTES));
    if (!text.empty() && text.back() == '*') return name.starts_with(text.substr(0, text.size() - 1));
    return name == text;
}

uint32_t rank_slot() {
    const int32_t rank = rank_of_process();
    const bool known = rank >= 0 && rank < SEQSHIFT_MOCK_RANKS - 1;
    return known ? static_cast<uint32_t>(rank) : SEQSHIFT_MOCK_RANKS - 1;
}

}  // namespace

SeqshiftMockControl &control() {
    static SeqshiftMockControl *segment = open_segment();
    return *segment;
}

int32_t rank_of_process() {
    int32_t rank = g_rank.load();
    if (rank == kRankUnknown) {
        const char *text = std::getenv("RANK");
        rank = text != nullptr && *text != '\0' ? std::atoi(text) : -1;
        g_rank.store(rank);
    }
    return rank;
}

void set_rank_of_process(int32_t rank) { g_rank.store(rank); }

Fault count_call(Symbol &symbol) {
    auto &segment = control();
    int32_t slot = symbol.slot.load(std::memory_order_relaxed);
    if (slot == -1) {
        slot = find_slot(symbol.name);
        symbol.slot.store(slot);
    }
    if (slot >= 0) shared(segment.counters[slot].calls[rank_slot()]).fetch_add(1);
    for (auto &rule : segment.rules) {
        if (shared(rule.armed).load() == 0 || !matches(rule.symbol, symbol.name)) continue;
        if (rule.rank != SEQSHIFT_MOCK_ANY_RANK && rule.rank != rank_of_process()) continue;
        if (rule.pid != SEQSHIFT_MOCK_ANY_PID && rule.pid != getpid()) continue;
        const uint64_t number = shared(rule.seen).fetch_add(1) + 1;
        const uint64_t first = rule.first == 0 ? 1 : rule.first;
        if (number < first || (rule.count != 0 && number - first >= rule.count)) continue;
        shared(rule.hits).fetch_add(1);
        return {rule.action, rule.value, &rule};
    }
    return {};
}

void stall(const Fault &fault, bool (*cancelled)(const void *), const void *argument) {
    const auto start = std::chrono::steady_clock::now();
    const auto limit = std::chrono::milliseconds(fault.value);
    shared(fault.rule->stalled).fetch_add(1);
    while (shared(fault.rule->released).load() == 0 && !cancelled(argument)) {
        if (fault.value > 0 && std::chrono::steady_clock::now() - start >= limit) break;
        std::this_thread::sleep_for(1ms);
    }
    shared(fault.rule->stalled).fetch_sub(1);
}

uint64_t setting(const uint64_t &field, const char *variable, uint64_t unit, uint64_t fallback) {
    if (const uint64_t value = shared(const_cast<uint64_t &>(field)).load(); value != 0) return value;
    const char *text = std::getenv(variable);
    if (text == nullptr || *text == '\0') return fallback;
    char *end = nullptr;
    const uint64_t value = std::strtoull(text, &end, 10);
    return *end == '\0' && value != 0 ? value * unit : fallback;
}

}  // namespace mock

extern "C" {

SeqshiftMockControl *seqshiftMockControl(void) { return &mock::control(); }

void seqshiftMockSetRank(int32_t rank) { mock::set_rank_of_process(rank); }
}
