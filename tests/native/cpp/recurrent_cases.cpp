// Convolutions, gated delta nets and Mamba-2, each over a sequence in one piece and cut in two.
#include <cmath>

#include "report.h"

namespace caudal::report {

namespace {

constexpr int64_t kTokens = 11;
constexpr int64_t kCut = 4;  // tokens of the first of two pieces

// Numbers of a state or of rows, beside the same in float64.
struct Numbers {
    std::vector<float> floats;
    std::vector<double> doubles;

    explicit Numbers(std::vector<float> values)
        : floats(std::move(values)), doubles(floats.begin(), floats.end()) {}
};

TokenRows<const float> rows(const Numbers& numbers, int64_t width) {
    return {numbers.floats.data(), width};
}

TokenRows<const float> later(TokenRows<const float> rows, int64_t tokens) {
    return {rows.at(tokens), rows.stride};
}

double activated(Activation activation, double x) {
    return activation == Activation::Silu ? x / (1 + std::exp(-x)) : x;
}

// Checks a result and a state, and that two pieces, the second one from another place to itself,
// give the same bits. `run(state, source, first, count, out)` runs some of the tokens.
template <class Run>
void report_pieces(const Report& report, const std::string& name, const std::vector<float>& before,
                   const std::vector<double>& expected, const std::vector<double>& expected_state,
                   double limit, const Run& run) {
    std::vector<float> out(expected.size());
    std::vector<float> state(before.size());
    run(before.data(), state.data(), 0, kTokens, out.data());
    report.bits(name, out);
    report.bits(name + "/state", state);
    report.close(name, out, expected, std::vector<double>(out.size(), 1.0), limit);
    report.close(name + "/state", state, expected_state, std::vector<double>(state.size(), 1.0),
                 limit);
    std::vector<float> pieces(expected.size());
    std::vector<float> moved(before.size());
    const auto width = static_cast<int64_t>(out.size()) / kTokens;
    run(before.data(), moved.data(), 0, kCut, pieces.data());
    run(moved.data(), moved.data(), kCut, kTokens - kCut, pieces.data() + kCut * width);
    report.same(name + "/pieces", pieces, out);
    report.same(name + "/pieces/state", moved, state);
}

void report_convolution(const RecurrentKernels& kernels, const Report& report) {
    for (const int64_t count : {2, 3, 4}) {
        for (const bool with_bias : {false, true}) {
            constexpr int64_t kChannels = 83;
            Random random(11);
            const auto channels = static_cast<size_t>(kChannels);
            const Numbers x(random.normals(kTokens * channels));
            const Numbers taps(random.normals(static_cast<size_t>(count) * channels));
            const Numbers bias(random.normals(channels));
            const Numbers before(random.normals(static_cast<size_t>(count - 1) * channels));
            const Activation activation = with_bias ? Activation::Silu : Activation::None;
            std::vector<double> inputs = before.doubles;
            inputs.insert(inputs.end(), x.doubles.begin(), x.doubles.end());
            std::vector<double> expected(x.doubles.size());
            for (size_t i = 0; i < expected.size(); ++i) {
                double sum = with_bias ? bias.doubles[i % channels] : 0;
                for (size_t tap = 0; tap < static_cast<size_t>(count); ++tap) {
                    sum += taps.doubles[tap * channels + i % channels] * inputs[i + tap * channels];
                }
                expected[i] = activated(activation, sum);
            }
            const std::vector<double> kept(inputs.end() - (count - 1) * kChannels, inputs.end());
            report_pieces(report, "convolve/" + std::to_string(count) + (with_bias ? "/bias" : ""),
                          before.floats, expected, kept, 2e-6,
                          [&](const float* source, float* destination, int64_t first,
                              int64_t tokens, float* out) {
                              ConvolutionTokens all;
                              all.tokens = tokens;
                              all.x = later(rows(x, kChannels), first);
                              all.out = {out, kChannels};
                              all.taps = taps.floats.data();
                              all.bias = with_bias ? bias.floats.data() : nullptr;
                              all.count = count;
                              all.channels = kChannels;
                              all.activation = activation;
                              all.source = source;
                              all.destination = destination;
                              kernels.convolve(all, 0, 48);
                              kernels.convolve(all, 48, kChannels);
                          });
        }
    }
}

// Number [row][channel] of states in panels.
size_t in_panels(int64_t row, int64_t channel, int64_t rows_of_state) {
    return static_cast<size_t>((channel / kStatePanel * rows_of_state + row) * kStatePanel +
                               channel % kStatePanel);
}

// A head's numbers: what both recurrences have.
struct Head {
    Head(int64_t rows_of_state, int64_t channels, Random& random)
        : first(random.normals(static_cast<size_t>(kTokens * rows_of_state))),
          second(random.normals(static_cast<size_t>(kTokens * rows_of_state))),
          values(random.normals(static_cast<size_t>(kTokens * channels))),
          decay(random.normals(kTokens)),
          strength(random.normals(kTokens)),
          before(random.normals(static_cast<size_t>(rows_of_state * channels))) {
        const auto scaled = [](Numbers& numbers, double scale, bool positive) {
            for (size_t i = 0; i < numbers.floats.size(); ++i) {
                const double value = numbers.floats[i] * scale;
                numbers.floats[i] =
                    static_cast<float>(positive ? 1 / (1 + std::exp(-value)) : value);
                numbers.doubles[i] = numbers.floats[i];
            }
        };
        const double unit = 1 / std::sqrt(static_cast<double>(rows_of_state));
        scaled(first, unit, false);
        scaled(second, unit, false);
        scaled(decay, 1.0, true);
        scaled(strength, 1.0, true);
    }

    Numbers first;   // k, or b
    Numbers second;  // q, or c
    Numbers values;
    Numbers decay;
    Numbers strength;  // beta, or dt
    Numbers before;
};

void report_delta(const RecurrentKernels& kernels, const Report& report) {
    for (const auto& [key_dim, value_dim] :
         {std::pair<int64_t, int64_t>{128, 64}, {20, 16}, {32, 112}}) {
        Random random(12);
        const Head head(key_dim, value_dim, random);
        constexpr float kScale = 0.75f;
        std::vector<double> state = head.before.doubles;
        std::vector<double> expected;
        for (size_t token = 0; token < kTokens; ++token) {
            const double* k = head.first.doubles.data() + token * static_cast<size_t>(key_dim);
            const double* q = head.second.doubles.data() + token * static_cast<size_t>(key_dim);
            for (int64_t channel = 0; channel < value_dim; ++channel) {
                double found = 0;
                for (int64_t i = 0; i < key_dim; ++i) {
                    double& number = state[in_panels(i, channel, key_dim)];
                    number *= head.decay.doubles[token];
                    found += number * k[i];
                }
                const auto at =
                    token * static_cast<size_t>(value_dim) + static_cast<size_t>(channel);
                const double written =
                    (head.values.doubles[at] - found) * head.strength.doubles[token];
                double sum = 0;
                for (int64_t i = 0; i < key_dim; ++i) {
                    double& number = state[in_panels(i, channel, key_dim)];
                    number += k[i] * written;
                    sum += number * q[i];
                }
                expected.push_back(sum * kScale);
            }
        }
        report_pieces(report,
                      "gated_delta/" + std::to_string(key_dim) + "x" + std::to_string(value_dim),
                      head.before.floats, expected, state, 4e-6,
                      [&](const float* source, float* destination, int64_t first, int64_t tokens,
                          float* out) {
                          DeltaTokens all;
                          all.tokens = tokens;
                          all.key_dim = key_dim;
                          all.panels = value_dim / kStatePanel;
                          all.scale = kScale;
                          all.k = later(rows(head.first, key_dim), first);
                          all.q = later(rows(head.second, key_dim), first);
                          all.v = later(rows(head.values, value_dim), first);
                          all.decay = later(rows(head.decay, 1), first);
                          all.beta = later(rows(head.strength, 1), first);
                          all.out = {out, value_dim};
                          all.source = source;
                          all.destination = destination;
                          kernels.gated_delta(all);
                      });
    }
}

void report_selective_scan(const RecurrentKernels& kernels, const Report& report) {
    for (const auto& [state_dim, channels] :
         {std::pair<int64_t, int64_t>{128, 64}, {20, 16}, {16, 112}}) {
        Random random(13);
        const Head head(state_dim, channels, random);
        constexpr float kSkip = 0.6f;
        std::vector<double> state = head.before.doubles;
        std::vector<double> expected;
        for (size_t token = 0; token < kTokens; ++token) {
            const double* b = head.first.doubles.data() + token * static_cast<size_t>(state_dim);
            const double* c = head.second.doubles.data() + token * static_cast<size_t>(state_dim);
            for (int64_t channel = 0; channel < channels; ++channel) {
                const double x = head.values.doubles[token * static_cast<size_t>(channels) +
                                                     static_cast<size_t>(channel)];
                double sum = double{kSkip} * x;
                for (int64_t i = 0; i < state_dim; ++i) {
                    double& number = state[in_panels(i, channel, state_dim)];
                    number = number * head.decay.doubles[token] +
                             b[i] * x * head.strength.doubles[token];
                    sum += number * c[i];
                }
                expected.push_back(sum);
            }
        }
        report_pieces(
            report, "selective_scan/" + std::to_string(state_dim) + "x" + std::to_string(channels),
            head.before.floats, expected, state, 4e-6,
            [&](const float* source, float* destination, int64_t first, int64_t tokens,
                float* out) {
                SelectiveTokens all;
                all.tokens = tokens;
                all.state_dim = state_dim;
                all.panels = channels / kStatePanel;
                all.skip = kSkip;
                all.b = later(rows(head.first, state_dim), first);
                all.c = later(rows(head.second, state_dim), first);
                all.x = later(rows(head.values, channels), first);
                all.dt = later(rows(head.strength, 1), first);
                all.decay = later(rows(head.decay, 1), first);
                all.out = {out, channels};
                all.source = source;
                all.destination = destination;
                kernels.selective_scan(all);
            });
    }
}

}  // namespace

void report_recurrences(const KernelTable& table, const Report& report) {
    report_convolution(table.recurrent, report);
    report_delta(table.recurrent, report);
    report_selective_scan(table.recurrent, report);
}

}  // namespace caudal::report
