// How an operation describes itself: it lists its fields once, each with its name and what it
// refers to. From that follow how Python states one (bindings/program.cpp), that everything it
// refers to exists, which buffers it reads and which it fills (runtime/plan.cpp).
#pragma once

#include <cstdint>
#include <tuple>

namespace caudal {

// What a field holds: the index of something, or a plain value.
enum class FieldKind : uint8_t {
    Output,   // a buffer that is written
    Input,    // a buffer that is read
    InPlace,  // a buffer that is read and written
    Matrix,
    Experts,  // a matrix for each expert
    Vector,
    RopeTable,
    KVLayer,
    StateLayer,
    Value,
};

constexpr bool reads_buffer(FieldKind kind) {
    return kind == FieldKind::Input || kind == FieldKind::InPlace;
}

constexpr bool writes_buffer(FieldKind kind) {
    return kind == FieldKind::Output || kind == FieldKind::InPlace;
}

// A field as Python names it. One that `may_be_absent` keeps the value that its member has by
// default: -1 for an index.
template <FieldKind kind_of_field, bool may_be_absent, class Op, class T>
struct Field {
    static constexpr FieldKind kind = kind_of_field;
    static constexpr bool optional = may_be_absent;

    const char* name;
    T Op::* member;
};

template <FieldKind kind, class Op, class T>
constexpr Field<kind, false, Op, T> field(const char* name, T Op::* member) {
    return {name, member};
}

template <FieldKind kind, class Op, class T>
constexpr Field<kind, true, Op, T> optional_field(const char* name, T Op::* member) {
    return {name, member};
}

// Calls `visit` with each field of a kind of operation.
template <class Op, class Visit>
constexpr void for_each_field(const Visit& visit) {
    std::apply([&](auto... fields) { (visit(fields), ...); }, Op::fields());
}

}  // namespace caudal
