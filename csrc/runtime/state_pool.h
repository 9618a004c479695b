// Slots for what recurrent layers remember: each has the states of all layers of one sequence, in
// float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/memory.h"

namespace caudal {

class StatePool {
  public:
    // `layers`: floats of each layer's state.
    StatePool(const std::vector<int64_t>& layers, int64_t num_slots);
    StatePool(const StatePool&) = delete;
    StatePool& operator=(const StatePool&) = delete;

    int64_t num_slots() const { return num_slots_; }
    // All that a slot holds.
    std::span<std::byte> slot(int64_t index) {
        return memory_.bytes().subspan(slot_bytes() * static_cast<size_t>(index), slot_bytes());
    }
    size_t slot_bytes() const { return slot_floats_ * sizeof(float); }
    // A layer's state in a slot; the slot must be below `num_slots`. It begins a cache line.
    std::span<float> state(int64_t slot, int64_t layer);

  private:
    struct Place {
        size_t first;  // float of the slot
        size_t floats;
    };

    int64_t num_slots_;
    std::vector<Place> places_;  // per layer
    size_t slot_floats_ = 0;
    Reservation memory_;
};

}  // namespace caudal
