// Programs from Python: an operation comes as its name and its fields, and what it is follows from
// how the operation describes itself (runtime/ops_*.h).
#include "runtime/program.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace caudal {

namespace {

// What Python calls the values of an enumeration; found by the type of the first argument.
template <class Enum>
using Names = std::vector<std::pair<const char*, Enum>>;

const Names<Activation>& names_of(Activation) {
    static const Names<Activation> names = {{"silu", Activation::Silu},
                                            {"gelu_tanh", Activation::GeluTanh},
                                            {"gelu", Activation::Gelu},
                                            {"relu", Activation::Relu},
                                            {"relu_squared", Activation::ReluSquared},
                                            {"tanh", Activation::Tanh},
                                            {"sigmoid", Activation::Sigmoid},
                                            {"softplus", Activation::Softplus},
                                            {"exp", Activation::Exp},
                                            {"none", Activation::None},
                                            {"swiglu_clamped", Activation::ClampedSwiglu}};
    return names;
}

const Names<Scoring>& names_of(Scoring) {
    static const Names<Scoring> names = {{"softmax", Scoring::Softmax},
                                         {"sigmoid", Scoring::Sigmoid},
                                         {"softmax_of_chosen", Scoring::SoftmaxOfChosen}};
    return names;
}

const Names<EmbedBy>& names_of(EmbedBy) {
    static const Names<EmbedBy> names = {
        {"token", EmbedBy::Token}, {"position", EmbedBy::Position}, {"segment", EmbedBy::Segment}};
    return names;
}

// False where a value isn't a T.
template <class T>
bool read_value(nb::handle value, T& out) {
    if constexpr (std::is_enum_v<T>) {
        std::string name;
        if (!nb::try_cast(value, name)) return false;
        for (const auto& [known, meaning] : names_of(T{})) {
            if (name != known) continue;
            out = meaning;
            return true;
        }
        return false;
    } else {
        return nb::try_cast(value, out);
    }
}

template <class AnyOp>
AnyOp read_op(const nb::dict& values) {
    AnyOp op{};
    size_t count = 0;
    for_each_field<AnyOp>([&](auto field) {
        const std::string name = std::string(AnyOp::kName) + "." + field.name;
        ++count;
        if (!values.contains(field.name)) throw std::invalid_argument(name + " is missing");
        const nb::object value = values[field.name];
        if (field.optional && value.is_none()) return;
        if (!read_value(value, op.*field.member)) {
            throw std::invalid_argument(name + " can't be " + nb::repr(value).c_str());
        }
    });
    if (count != values.size()) {
        throw std::invalid_argument(std::string(AnyOp::kName) + " has fields that aren't known");
    }
    return op;
}

template <class... AnyOp>
void read_op_named(const std::string& name, const nb::dict& values, std::variant<AnyOp...>& out) {
    const bool found = ((name == AnyOp::kName && (out = read_op<AnyOp>(values), true)) || ...);
    if (!found) throw std::invalid_argument("there is no operation " + name);
}

using NamedOps = std::vector<std::tuple<std::string, nb::dict>>;

std::vector<Op> read_ops(const NamedOps& named) {
    std::vector<Op> ops;
    for (const auto& [name, values] : named) read_op_named(name, values, ops.emplace_back());
    return ops;
}

}  // namespace

void bind_program(nb::module_& module) {
    nb::class_<Program>(module, "Program")
        .def(
            "__init__",
            [](Program* self, std::vector<int64_t> buffer_widths,
               const std::vector<std::tuple<std::vector<float>, float, bool>>& rope_tables,
               const std::vector<std::tuple<int64_t, int64_t, int64_t, bool, int64_t>>& kv_layers,
               std::vector<int64_t> state_layers, const NamedOps& body, const NamedOps& tail,
               const NamedOps& head, const NamedOps& states, std::vector<int> carried, int hidden,
               std::optional<int> logits, int state) {
                Program program;
                program.buffer_widths = std::move(buffer_widths);
                for (const auto& [frequencies, magnitude, interleaved] : rope_tables) {
                    program.rope_tables.push_back({frequencies, magnitude, interleaved});
                }
                for (const auto& [kv_heads, key_dim, value_dim, latent, window] : kv_layers) {
                    program.kv_layers.push_back({kv_heads, key_dim, value_dim, latent, window});
                }
                program.state_layers = std::move(state_layers);
                program.body = read_ops(body);
                program.tail = read_ops(tail);
                program.head = read_ops(head);
                program.states = read_ops(states);
                program.carried = std::move(carried);
                program.hidden = hidden;
                program.logits = logits.value_or(-1);
                program.state = state;
                new (self) Program(std::move(program));
            },
            "buffer_widths"_a, "rope_tables"_a, "kv_layers"_a, "state_layers"_a, "body"_a, "tail"_a,
            "head"_a, "states"_a, "carried"_a, "hidden"_a, "logits"_a.none(), "state"_a);
}

}  // namespace caudal
