// Convolutions and recurrences over a sequence's tokens. See recurrent.h.

#include "kernels/elementwise.inl"
#include "kernels/recurrent.h"

namespace caudal::CAUDAL_ISA {
namespace {

// Vectors of a state's row that are computed side by side: enough additions under way to hide their
// latency, and few enough that a head's rows of them stay in the first-level cache.
constexpr int kStateVectors = 4;
constexpr int kStatePanels = kStateVectors / kHalves;

void convolve(const ConvolutionTokens& tokens, int64_t begin, int64_t end) {
    const int64_t kept = tokens.count - 1;
    const int64_t channels = tokens.channels;
    // Input number `index` of those kept and then the tokens'.
    const auto input = [&](int64_t index) {
        return index < kept ? tokens.source + index * channels : tokens.x.at(index - kept);
    };
    for (int64_t token = 0; token < tokens.tokens; ++token) {
        float* out = tokens.out.at(token) + begin;
        map_padded(end - begin, out, [&]<class Floats>(Floats, int64_t i, int64_t count) {
            const int64_t channel = begin + i;
            Floats sum = tokens.bias == nullptr ? splat_as<Floats>(0.0f)
                                                : load_part<Floats>(tokens.bias + channel, count);
            for (int64_t tap = 0; tap < tokens.count; ++tap) {
                sum = multiply_add(load_part<Floats>(tokens.taps + tap * channels + channel, count),
                                   load_part<Floats>(input(token + tap) + channel, count), sum);
            }
            return activated(tokens.activation, sum);
        });
    }
    // Oldest first: where the destination is the source, none is overwritten before it has moved.
    for (int64_t i = 0; i < kept; ++i) {
        const float* from = input(tokens.tokens + i) + begin;
        float* to = tokens.destination + i * channels + begin;
        if (from != to) std::memcpy(to, from, static_cast<size_t>(end - begin) * sizeof(float));
    }
}

// Some panels' part of a row of numbers, and row `index` of their states.
template <int panels>
struct StateVectors {
    static constexpr int kCount = panels * kHalves;

    f32w v[kCount];

    static CAUDAL_INLINE StateVectors all(float value) {
        StateVectors filled;
        for (f32w& vector : filled.v) vector = splat_wide(value);
        return filled;
    }
    static CAUDAL_INLINE StateVectors of_row(const float* row) {
        StateVectors loaded;
        for (int i = 0; i < kCount; ++i) loaded.v[i] = load_wide(row + i * kWideLanes);
        return loaded;
    }
    static CAUDAL_INLINE StateVectors of_state(const float* state, int64_t index, int64_t rows) {
        StateVectors loaded;
        for (int i = 0; i < kCount; ++i) loaded.v[i] = load_wide(state + place(i, index, rows));
        return loaded;
    }
    CAUDAL_INLINE void store_row(float* row) const {
        for (int i = 0; i < kCount; ++i) store(row + i * kWideLanes, v[i]);
    }
    CAUDAL_INLINE void store_state(float* state, int64_t index, int64_t rows) const {
        for (int i = 0; i < kCount; ++i) store(state + place(i, index, rows), v[i]);
    }
    // this += factor · by
    CAUDAL_INLINE void add(float factor, const StateVectors& by) {
        const f32w all_lanes = splat_wide(factor);
        for (int i = 0; i < kCount; ++i) v[i] = multiply_add(all_lanes, by.v[i], v[i]);
    }
    CAUDAL_INLINE void multiply(float factor) {
        const f32w all_lanes = splat_wide(factor);
        for (int i = 0; i < kCount; ++i) v[i] = v[i] * all_lanes;
    }

  private:
    static CAUDAL_INLINE int64_t place(int vector, int64_t index, int64_t rows) {
        return (vector / kHalves * rows + index) * kStatePanel + vector % kHalves * kWideLanes;
    }
};

// What is left of the old state counts by `decay`, so a token needs one pass over the state: while
// it is updated, what the next token's key and query find in it is summed up.
template <int panels>
void delta_panels(const DeltaTokens& all, int64_t first) {
    using Vectors = StateVectors<panels>;
    const int64_t rows = all.key_dim;
    const float* from = all.source + first * rows * kStatePanel;
    float* to = all.destination + first * rows * kStatePanel;
    Vectors by_key = Vectors::all(0.0f);
    Vectors by_query = Vectors::all(0.0f);
    {
        const float* k = all.k.at(0);
        const float* q = all.q.at(0);
        for (int64_t i = 0; i < rows; ++i) {
            const Vectors row = Vectors::of_state(from, i, rows);
            by_key.add(k[i], row);
            by_query.add(q[i], row);
        }
    }
    for (int64_t token = 0; token < all.tokens; ++token, from = to) {
        const float decay = *all.decay.at(token);
        const float* k = all.k.at(token);
        const float* q = all.q.at(token);
        const float key_query = sum_terms(rows, [&]<class Number>(int64_t i, Number sum) {
            return multiply_add(load_as<Number>(k + i), load_as<Number>(q + i), sum);
        });
        // What is written: (v - decay · Sᵀk) · beta; out: scale · (decay · Sᵀq + (k · q) · written).
        Vectors written = Vectors::of_row(all.v.at(token) + first * kStatePanel);
        written.add(-decay, by_key);
        written.multiply(*all.beta.at(token));
        by_query.multiply(decay);
        by_query.add(key_query, written);
        by_query.multiply(all.scale);
        by_query.store_row(all.out.at(token) + first * kStatePanel);
        if (token + 1 == all.tokens) {
            for (int64_t i = 0; i < rows; ++i) {
                Vectors row = Vectors::of_state(from, i, rows);
                row.multiply(decay);
                row.add(k[i], written);
                row.store_state(to, i, rows);
            }
            return;
        }
        const float* next_k = all.k.at(token + 1);
        const float* next_q = all.q.at(token + 1);
        by_key = Vectors::all(0.0f);
        by_query = Vectors::all(0.0f);
        for (int64_t i = 0; i < rows; ++i) {
            Vectors row = Vectors::of_state(from, i, rows);
            row.multiply(decay);
            row.add(k[i], written);
            row.store_state(to, i, rows);
            by_key.add(next_k[i], row);
            by_query.add(next_q[i], row);
        }
    }
}

template <int panels>
void selective_panels(const SelectiveTokens& all, int64_t first) {
    using Vectors = StateVectors<panels>;
    const int64_t rows = all.state_dim;
    const float* from = all.source + first * rows * kStatePanel;
    float* to = all.destination + first * rows * kStatePanel;
    for (int64_t token = 0; token < all.tokens; ++token, from = to) {
        const float decay = *all.decay.at(token);
        const float* b = all.b.at(token);
        const float* c = all.c.at(token);
        const Vectors x = Vectors::of_row(all.x.at(token) + first * kStatePanel);
        Vectors written = x;
        written.multiply(*all.dt.at(token));
        Vectors sum = Vectors::all(0.0f);
        for (int64_t i = 0; i < rows; ++i) {
            Vectors row = Vectors::of_state(from, i, rows);
            row.multiply(decay);
            row.add(b[i], written);
            row.store_state(to, i, rows);
            sum.add(c[i], row);
        }
        sum.add(all.skip, x);
        sum.store_row(all.out.at(token) + first * kStatePanel);
    }
}

// Calls a function for some panels at once as long as there are so many, then for one by one.
template <class Several, class One>
CAUDAL_INLINE void for_state_panels(int64_t panels, Several several, One one) {
    int64_t panel = 0;
    for (; panel + kStatePanels <= panels; panel += kStatePanels) several(panel);
    for (; panel < panels; ++panel) one(panel);
}

void gated_delta(const DeltaTokens& tokens) {
    for_state_panels(
        tokens.panels, [&](int64_t first) { delta_panels<kStatePanels>(tokens, first); },
        [&](int64_t first) { delta_panels<1>(tokens, first); });
}

void selective_scan(const SelectiveTokens& tokens) {
    for_state_panels(
        tokens.panels, [&](int64_t first) { selective_panels<kStatePanels>(tokens, first); },
        [&](int64_t first) { selective_panels<1>(tokens, first); });
}

RecurrentKernels recurrent_kernels() {
    return {convolve, gated_delta, selective_scan};
}

}  // namespace
}  // namespace caudal::CAUDAL_ISA
