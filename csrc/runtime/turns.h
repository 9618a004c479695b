// Turns on the processors, which the engines of several processes take one after the other.
//
// Threads of a team wait for each other at barriers, spinning. Two teams at once on processors for
// one would spend most of their time waiting for threads that don't run; so only as many run at
// once as there are processors for, each for one iteration.
//
// Who has had less of the processors goes first (start-time fair queueing, Goyal, Vin & Cheng
// 1996): whoever takes a turn gets a tag, in thread-nanoseconds, that grows by what its turn takes;
// the smallest tag is first. Who comes back from a pause starts at the tag of the latest turn, so
// nobody saves up time. One that is behind and has just given its turn back is awaited for a
// moment: between two iterations an engine always has something to do, and others would slip in.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace caudal {

struct TurnPlace;
struct TurnTable;

// Nanoseconds.
struct TurnTimes {
    int64_t poll;     // how often one that waits looks whether the others are alive
    int64_t grace;    // how long one that is behind is awaited
    int64_t stuck;    // how long a turn may go on, or not be taken, without the processor's use
    int64_t longest;  // how long a turn may take while others wait, whatever it does
};

// A place among those that take turns. Used by one thread at a time.
//
// What is shared is a file that everybody maps, all zeros at first; a lock on a byte of it, which
// the kernel gives up with the process, says that a place is taken. Who has a turn and who waits
// is in one word of it. So one may be killed anywhere, and the others find it gone and go on; and
// one that is stopped, or waits for a disk, loses its turn to those who could use it.
class Turns {
  public:
    // How many can take turns.
    static constexpr int kPlaces = 32;

    // Opens the file again, by its descriptor, to have locks of its own. `threads` of the
    // `processors` that there are are needed at each turn.
    // Throws std::system_error; std::runtime_error where all places are taken.
    Turns(int descriptor, int threads, int processors, TurnTimes times);
    ~Turns();
    Turns(const Turns&) = delete;
    Turns& operator=(const Turns&) = delete;

    // Takes a turn if there is one to be had at once: an atomic operation, no system call.
    bool try_take();
    // Takes a turn, sleeping until there is one. For after a `try_take` that has failed.
    void wait();
    // Ends a turn. Returns whether another begins its own right now.
    bool give_back();
    // Says that nothing waits to be computed, so that nobody holds a turn open for this one.
    void leave();

  private:
    // A file descriptor that is closed in the end.
    class File {
      public:
        explicit File(int descriptor);  // opens the file behind it
        ~File();
        File(const File&) = delete;
        File& operator=(const File&) = delete;
        int descriptor() const { return descriptor_; }

      private:
        int descriptor_;
    };
    struct Unmap {
        void operator()(TurnTable* table) const;
    };
    // What has been seen of another that is in the way.
    struct Watch {
        enum class What { Nothing, Computes, CouldGo };
        What what;
        uint32_t turns;
        int64_t since;
        int64_t processor_time;  // when last looked at
        int64_t looked;
    };

    int take_place();
    TurnPlace& place(int index) const;
    int used(uint64_t word) const;
    bool fits(uint64_t word, int index) const;
    bool is_before(int index, int other) const;
    int first_waiting(uint64_t word) const;
    bool awaits_another(uint64_t word, int index, int64_t now, int64_t& until) const;
    bool may_go(uint64_t word, int64_t now, int64_t& look_again) const;
    bool wake_first(uint64_t word);
    void begin(int64_t now);
    bool is_gone(int index) const;
    bool is_stuck(int index, Watch::What what, int64_t now);
    bool look_after(uint64_t word, int64_t now);

    const File file_;
    const std::unique_ptr<TurnTable, Unmap> table_;
    const int processors_;
    const TurnTimes times_;
    const int index_;
    int64_t began_ = 0;
    std::array<Watch, kPlaces> watches_{};
};

}  // namespace caudal
