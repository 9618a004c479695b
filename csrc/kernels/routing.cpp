#include "kernels/routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace caudal {

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The best of what is added, in order; of equals those that were added first.
template <int64_t most>
class Best {
  public:
    explicit Best(int64_t wanted) : wanted_(wanted) {}

    void add(int32_t index, float key) {
        if (count_ == wanted_ && !(key > keys_[at(count_ - 1)])) return;
        int64_t place = count_ < wanted_ ? count_++ : count_ - 1;
        for (; place > 0 && key > keys_[at(place - 1)]; --place) {
            keys_[at(place)] = keys_[at(place - 1)];
            indices_[at(place)] = indices_[at(place - 1)];
        }
        keys_[at(place)] = key;
        indices_[at(place)] = index;
    }
    int64_t count() const { return count_; }
    int32_t index(int64_t place) const { return indices_[at(place)]; }
    float key(int64_t place) const { return keys_[at(place)]; }

  private:
    static constexpr size_t at(int64_t place) { return static_cast<size_t>(place); }

    int64_t wanted_;
    int64_t count_ = 0;
    std::array<float, most> keys_{};
    std::array<int32_t, most> indices_{};
};

// One bit for each group that experts may be chosen from: those whose best experts add up to most
// (DeepSeek-V3, arXiv 2412.19437).
template <class KeyOf>
uint64_t groups_with_the_best(const Routing& routing, int64_t experts, const KeyOf& key_of) {
    const int64_t size = experts / routing.groups;
    Best<kMostExpertGroups> groups(routing.groups_used);
    for (int64_t group = 0; group < routing.groups; ++group) {
        Best<kMostExpertsUsed> best(routing.best_of_group);
        for (int64_t i = group * size; i < (group + 1) * size; ++i) {
            best.add(static_cast<int32_t>(i), key_of(i));
        }
        float sum = 0.0f;
        for (int64_t i = 0; i < best.count(); ++i) sum += best.key(i);
        groups.add(static_cast<int32_t>(group), std::isnan(sum) ? kLowest : sum);
    }
    uint64_t bits = 0;
    for (int64_t i = 0; i < groups.count(); ++i) bits |= uint64_t{1} << groups.index(i);
    return bits;
}

}  // namespace

void route(const TokenKernels& kernels, const Routing& routing, std::span<float> logits,
           std::span<Choice> choices) {
    const auto experts = static_cast<int64_t>(logits.size());
    const auto used = static_cast<int64_t>(choices.size());
    bool failed = false;
    for (const float logit : logits) failed |= std::isnan(logit);
    if (routing.scoring == Scoring::Softmax) kernels.softmax(logits.data(), experts);
    if (routing.scoring == Scoring::Sigmoid) {
        kernels.activate(Activation::Sigmoid, logits.data(), experts);
    }
    const std::span<const float> bias = routing.selection_bias;
    const auto key_of = [&](int64_t expert) {
        const auto at = static_cast<size_t>(expert);
        const float key = bias.empty() ? logits[at] : logits[at] + bias[at];
        return std::isnan(key) ? kLowest : key;
    };
    const uint64_t groups =
        routing.groups > 1 ? groups_with_the_best(routing, experts, key_of) : uint64_t{1};
    const int64_t group_size = experts / routing.groups;
    Best<kMostExpertsUsed> best(used);
    for (int64_t group = 0; group < routing.groups; ++group) {
        if ((groups >> group & 1) == 0) continue;
        for (int64_t i = group * group_size; i < (group + 1) * group_size; ++i) {
            best.add(static_cast<int32_t>(i), key_of(i));
        }
    }

    std::array<float, kMostExpertsUsed> weights{};
    for (int64_t i = 0; i < used; ++i) {
        weights[static_cast<size_t>(i)] = logits[static_cast<size_t>(best.index(i))];
    }
    if (routing.scoring == Scoring::SoftmaxOfChosen) kernels.softmax(weights.data(), used);
    float factor = routing.scale;
    if (routing.normalise) {
        float sum = 0.0f;
        for (int64_t i = 0; i < used; ++i) sum += weights[static_cast<size_t>(i)];
        factor /= sum + 1e-20f;  // of sigmoids all may be zero
    }
    for (int64_t i = 0; i < used; ++i) {
        const int32_t expert = best.index(i);
        float weight = weights[static_cast<size_t>(i)] * factor;
        if (!routing.expert_scale.empty()) {
            weight *= routing.expert_scale[static_cast<size_t>(expert)];
        }
        if (failed) weight = std::numeric_limits<float>::quiet_NaN();
        choices[static_cast<size_t>(i)] = {expert, weight};
    }
}

}  // namespace caudal
