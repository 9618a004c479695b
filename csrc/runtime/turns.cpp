#include "runtime/turns.h"

#if defined(__linux__)

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>

namespace caudal {

// What is in the file of one that takes turns; its own process alone writes it.
struct alignas(64) TurnPlace {
    std::atomic<uint64_t> tag;           // of its turn, or of its next; thread-nanoseconds
    std::atomic<int64_t> arrival;        // since when it waits
    std::atomic<int64_t> awaited_until;  // until when it will probably have come back
    std::atomic<uint32_t> wake;          // changes when it is to look again; others write it too
    std::atomic<uint32_t> turns;         // that it has taken
    std::atomic<int32_t> threads;
    std::atomic<int32_t> process;
};

struct TurnTable {
    // Who computes, a bit for each place, and from `kWaiting` on who waits.
    alignas(64) std::atomic<uint64_t> word;
    alignas(64) std::atomic<uint64_t> latest;  // the largest tag of a turn that has begun
    std::atomic<int32_t> places;               // all that were ever taken are below
    std::array<TurnPlace, Turns::kPlaces> all;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(TurnTable) <= 4096);

namespace {

constexpr int kWaiting = Turns::kPlaces;
constexpr int64_t kSecond = 1'000'000'000;
// One computes that uses the processors for a fiftieth of the time at least.
constexpr int64_t kBusyPart = 50;

constexpr uint64_t computes(int index) {
    return uint64_t{1} << index;
}
constexpr uint64_t waits(int index) {
    return uint64_t{1} << (kWaiting + index);
}
constexpr uint32_t computing(uint64_t word) {
    return static_cast<uint32_t>(word);
}
constexpr uint32_t waiting(uint64_t word) {
    return static_cast<uint32_t>(word >> kWaiting);
}

int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Calls `body(index)` for each bit.
template <class Body>
void for_each_bit(uint32_t bits, const Body& body) {
    for (; bits != 0; bits &= bits - 1) body(std::countr_zero(bits));
}

// Sleeps until woken, while `value` is `old`, for so long at most.
void sleep_while_equal(std::atomic<uint32_t>& value, uint32_t old, int64_t nanoseconds) {
    const timespec timeout{nanoseconds / kSecond, nanoseconds % kSecond};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAIT, old, &timeout, nullptr, 0);
}

void wake_sleeper(std::atomic<uint32_t>& value) {
    value.fetch_add(1);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// A lock on a place's byte; it belongs to an open file, not to a process.
struct flock lock_of(int index) {
    struct flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = index;
    lock.l_len = 1;
    return lock;
}

// What a process has used of processors; -1 where that can't be told.
int64_t processor_time(int process) {
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &time) != 0) return -1;
    return int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

TurnTable* map_table(int descriptor) {
    void* memory =
        mmap(nullptr, sizeof(TurnTable), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    return static_cast<TurnTable*>(memory);
}

}  // namespace

Turns::File::File(int descriptor)
    : descriptor_(
          open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), O_RDWR | O_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "open");
}

Turns::File::~File() {
    close(descriptor_);
}

void Turns::Unmap::operator()(TurnTable* table) const {
    munmap(table, sizeof(TurnTable));
}

Turns::Turns(int descriptor, int threads, int processors, TurnTimes times)
    : file_(descriptor),
      table_(map_table(file_.descriptor())),
      processors_(processors),
      times_(times),
      index_(take_place()) {
    // Who had the place before may have been killed amid anything.
    table_->word.fetch_and(~(computes(index_) | waits(index_)));
    TurnPlace& own = place(index_);
    own.tag.store(0);
    own.awaited_until.store(0);
    own.threads.store(std::min(threads, processors));
    own.process.store(getpid());
    int32_t places = table_->places.load();
    while (places <= index_ && !table_->places.compare_exchange_weak(places, index_ + 1)) {
    }
}

Turns::~Turns() {
    place(index_).awaited_until.store(0);
    wake_first(table_->word.fetch_and(~(computes(index_) | waits(index_))) &
               ~(computes(index_) | waits(index_)));
}

int Turns::take_place() {
    for (int index = 0; index < kPlaces; ++index) {
        struct flock lock = lock_of(index);
        if (fcntl(file_.descriptor(), F_OFD_SETLK, &lock) == 0) return index;
        if (errno != EAGAIN && errno != EACCES) {
            throw std::system_error(errno, std::generic_category(), "fcntl");
        }
    }
    throw std::runtime_error("all " + std::to_string(kPlaces) + " places are taken");
}

TurnPlace& Turns::place(int index) const {
    return table_->all[static_cast<size_t>(index)];
}

bool Turns::try_take() {
    TurnPlace& own = place(index_);
    const int64_t now = now_ns();
    own.tag.store(std::max(own.tag.load(), table_->latest.load()));
    own.arrival.store(now);
    uint64_t word = table_->word.load();
    int64_t look_again = 0;
    if (!may_go(word, now, look_again)) return false;
    if (!table_->word.compare_exchange_strong(word, word | computes(index_))) return false;
    begin(now);
    return true;
}

void Turns::wait() {
    TurnPlace& own = place(index_);
    const uint64_t waits_here = waits(index_);
    int64_t next_look = now_ns() + times_.poll;
    watches_.fill({});
    while (true) {
        const uint32_t seen = own.wake.load();
        // The others take it away from one that doesn't take its turn for long, say one stopped.
        uint64_t word = table_->word.fetch_or(waits_here) | waits_here;
        const int64_t now = now_ns();
        int64_t look_again = next_look;
        if (may_go(word, now, look_again)) {
            const uint64_t begun = (word | computes(index_)) & ~waits_here;
            if (!table_->word.compare_exchange_strong(word, begun)) continue;
            begin(now);
            wake_first(begun);  // there may be room for two
            return;
        }
        if (now >= next_look) {
            next_look = now + times_.poll;
            if (look_after(word, now)) continue;
        }
        look_again = std::min(look_again, next_look);
        sleep_while_equal(own.wake, seen, std::max<int64_t>(look_again - now, 1));
    }
}

bool Turns::give_back() {
    TurnPlace& own = place(index_);
    const int64_t now = now_ns();
    const bool was_its_own = (computing(table_->word.load()) >> index_ & 1) != 0;
    // What it computed after the others went on without it was not at their expense alone.
    if (was_its_own) {
        own.tag.store(own.tag.load() + static_cast<uint64_t>(now - began_) *
                                           static_cast<uint64_t>(own.threads.load()));
    }
    own.awaited_until.store(now + times_.grace);
    const uint64_t word = table_->word.fetch_and(~computes(index_)) & ~computes(index_);
    return wake_first(word);
}

void Turns::leave() {
    place(index_).awaited_until.store(0);
    wake_first(table_->word.load());
}

// Processors that are taken.
int Turns::used(uint64_t word) const {
    int sum = 0;
    for_each_bit(computing(word), [&](int index) { sum += place(index).threads.load(); });
    return sum;
}

bool Turns::fits(uint64_t word, int index) const {
    return used(word) + place(index).threads.load() <= processors_;
}

bool Turns::is_before(int index, int other) const {
    const auto rank = [this](int of) {
        return std::tuple(place(of).tag.load(), place(of).arrival.load(), of);
    };
    return rank(index) < rank(other);
}

// -1: nobody waits.
int Turns::first_waiting(uint64_t word) const {
    int first = -1;
    for_each_bit(waiting(word), [&](int index) {
        if (first < 0 || is_before(index, first)) first = index;
    });
    return first;
}

// Whether another one, which is behind this, will probably be back in a moment, and until when.
bool Turns::awaits_another(uint64_t word, int index, int64_t now, int64_t& until) const {
    const uint32_t busy = computing(word) | waiting(word);
    const int places = table_->places.load();
    bool awaits = false;
    for (int other = 0; other < places; ++other) {
        if (other == index || (busy >> other & 1) != 0) continue;
        const int64_t awaited = place(other).awaited_until.load();
        if (awaited <= now || place(other).tag.load() >= place(index).tag.load()) continue;
        until = awaits ? std::max(until, awaited) : awaited;
        awaits = true;
    }
    return awaits;
}

// Whether it is this one's turn; else `look_again` may become earlier. Nobody overtakes: one that
// needs many threads would never find them free.
bool Turns::may_go(uint64_t word, int64_t now, int64_t& look_again) const {
    if (!fits(word, index_)) return false;
    const int first = first_waiting(word & ~waits(index_));
    if (first >= 0 && is_before(first, index_)) return false;
    int64_t until = 0;
    if (!awaits_another(word, index_, now, until)) return true;
    look_again = std::min(look_again, until);
    return false;
}

// Wakes the first of those that wait, if it is its turn. Returns whether it is.
bool Turns::wake_first(uint64_t word) {
    const int first = first_waiting(word);
    if (first < 0 || !fits(word, first)) return false;
    int64_t until = 0;
    if (awaits_another(word, first, now_ns(), until)) return false;
    wake_sleeper(place(first).wake);
    return true;
}

void Turns::begin(int64_t now) {
    TurnPlace& own = place(index_);
    began_ = now;
    own.turns.store(own.turns.load() + 1);
    if (own.tag.load() > table_->latest.load()) table_->latest.store(own.tag.load());
}

bool Turns::is_gone(int index) const {
    struct flock lock = lock_of(index);
    return fcntl(file_.descriptor(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

bool Turns::is_stuck(int index, Watch::What what, int64_t now) {
    Watch& watch = watches_[static_cast<size_t>(index)];
    const TurnPlace& other = place(index);
    const uint32_t turns = other.turns.load();
    if (watch.what != what || watch.turns != turns) {
        watch = {what, turns, now, processor_time(other.process.load()), now};
        return false;
    }
    if (what == Watch::What::Nothing) return false;
    if (what == Watch::What::CouldGo) return now - watch.since > times_.stuck;
    if (now - watch.since > times_.longest) return true;
    if (now - watch.looked <= times_.stuck || watch.processor_time < 0) return false;
    const int64_t time = processor_time(other.process.load());
    const bool is_idle = time - watch.processor_time < (now - watch.looked) / kBusyPart;
    watch.processor_time = time;
    watch.looked = now;
    return is_idle;
}

// Lets those go who are in the way for nothing. Returns whether there were any.
bool Turns::look_after(uint64_t word, int64_t now) {
    const int first = first_waiting(word);
    uint64_t in_the_way = 0;
    for_each_bit(computing(word) | waiting(word), [&](int index) {
        if (index == index_) return;
        auto what = Watch::What::Nothing;
        if ((computing(word) >> index & 1) != 0) {
            what = Watch::What::Computes;
        } else if (index == first && fits(word, index)) {
            what = Watch::What::CouldGo;
        }
        if (is_gone(index) || is_stuck(index, what, now)) {
            in_the_way |= computes(index) | waits(index);
        }
    });
    if (in_the_way == 0) return false;
    wake_first(table_->word.fetch_and(~in_the_way) & ~in_the_way);
    return true;
}

}  // namespace caudal

#endif
