#include "runtime/state_pool.h"

#include <limits>
#include <stdexcept>

namespace caudal {

namespace {

constexpr size_t kLineFloats = 16;

size_t checked_bytes(size_t slot_floats, int64_t num_slots) {
    if (num_slots < 0 || (slot_floats > 0 && num_slots == 0)) {
        throw std::invalid_argument("recurrent layers need at least one slot for their states");
    }
    const size_t slot_bytes = slot_floats * sizeof(float);
    if (slot_bytes > 0 &&
        static_cast<size_t>(num_slots) > std::numeric_limits<size_t>::max() / slot_bytes) {
        throw std::invalid_argument("the slots for states are larger than any memory");
    }
    return slot_bytes * static_cast<size_t>(num_slots);
}

}  // namespace

StatePool::StatePool(const std::vector<int64_t>& layers, int64_t num_slots)
    : num_slots_(num_slots),
      places_([&] {
          std::vector<Place> places;
          size_t next = 0;
          for (const int64_t floats : layers) {
              if (floats <= 0 || floats > std::numeric_limits<int32_t>::max()) {
                  throw std::invalid_argument("a recurrent layer has a state of a wrong size");
              }
              const auto size = static_cast<size_t>(floats);
              places.push_back({next, size});
              next += (size + kLineFloats - 1) / kLineFloats * kLineFloats;
          }
          return places;
      }()),
      slot_floats_(places_.empty()
                       ? 0
                       : (places_.back().first + places_.back().floats + kLineFloats - 1) /
                             kLineFloats * kLineFloats),
      memory_(checked_bytes(slot_floats_, num_slots), /*huge_pages=*/true) {}

std::span<float> StatePool::state(int64_t slot, int64_t layer) {
    const Place& place = places_.at(static_cast<size_t>(layer));
    auto* floats = reinterpret_cast<float*>(memory_.bytes().data());
    return {floats + static_cast<size_t>(slot) * slot_floats_ + place.first, place.floats};
}

}  // namespace caudal
