// Turns for Python. caudal.workers.turns is its only user.
#include "runtime/turns.h"

#include <cmath>
#include <cstdint>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace caudal {

#if defined(__linux__)

namespace {

int64_t nanoseconds(double seconds) {
    return std::llround(seconds * 1e9);
}

class PyTurns {
  public:
    PyTurns(int descriptor, int threads, int processors, double poll, double grace, double stuck,
            double longest)
        : turns_(
              descriptor, threads, processors,
              {nanoseconds(poll), nanoseconds(grace), nanoseconds(stuck), nanoseconds(longest)}) {}

    void take() {
        if (turns_.try_take()) return;
        const nb::gil_scoped_release release;
        turns_.wait();
    }
    bool give_back() { return turns_.give_back(); }
    void leave() { turns_.leave(); }

  private:
    Turns turns_;
};

}  // namespace

void bind_turns(nb::module_& module) {
    nb::class_<PyTurns>(module, "Turns")
        .def(nb::init<int, int, int, double, double, double, double>(), "descriptor"_a, "threads"_a,
             "processors"_a, "poll"_a, "grace"_a, "stuck"_a, "longest"_a)
        .def("take", &PyTurns::take)
        .def("give_back", &PyTurns::give_back)
        .def("leave", &PyTurns::leave);
    module.attr("TURN_PLACES") = Turns::kPlaces;
}

#else

void bind_turns(nb::module_&) {}

#endif

}  // namespace caudal
