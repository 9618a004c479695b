// Which experts tokens choose, and in which rows those compute for them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/expert_rows.h"
#include "kernels/routing.h"
#include "report.h"

namespace caudal::report {

namespace {

constexpr size_t kExperts = 96;
constexpr size_t kUsed = 6;

std::vector<Choice> routed(const TokenKernels& kernels, const Routing& routing,
                           std::vector<float> logits) {
    std::vector<Choice> choices(kUsed);
    route(kernels, routing, logits, choices);
    return choices;
}

std::vector<int32_t> experts_of(const std::vector<Choice>& choices) {
    std::vector<int32_t> experts;
    for (const Choice& choice : choices) experts.push_back(choice.expert);
    return experts;
}

std::vector<float> weights_of(const std::vector<Choice>& choices) {
    std::vector<float> weights;
    for (const Choice& choice : choices) weights.push_back(choice.weight);
    return weights;
}

// The largest first, of equals the first.
std::vector<int32_t> best_of(const std::vector<float>& keys) {
    std::vector<int32_t> order(keys.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
    });
    order.resize(kUsed);
    return order;
}

void report_choices(const TokenKernels& kernels, const Report& report) {
    Random random(11);
    std::vector<float> logits = random.normals(kExperts);
    // Equals, at the limit of what is chosen and elsewhere.
    const std::vector<int32_t> best = best_of(logits);
    logits[20] = logits[70] = logits[static_cast<size_t>(best[kUsed - 2])];
    logits[40] = logits[50] = 9.0f;

    Routing routing;
    routing.normalise = true;
    routing.scale = 2.5f;
    std::vector<Choice> choices = routed(kernels, routing, logits);
    report.holds("route/softmax", experts_of(choices) == best_of(logits));
    double sum = 0;
    for (const Choice& choice : choices) {
        sum += std::exp(double{logits[static_cast<size_t>(choice.expert)]});
    }
    std::vector<double> expected;
    for (const Choice& choice : choices) {
        expected.push_back(2.5 * std::exp(double{logits[static_cast<size_t>(choice.expert)]}) /
                           sum);
    }
    report.bits("route/softmax", weights_of(choices));
    report.close("route/softmax", weights_of(choices), expected, expected, 1e-6);
    routing.scoring = Scoring::SoftmaxOfChosen;
    routing.normalise = false;
    choices = routed(kernels, routing, logits);
    report.close("route/softmax_of_chosen", weights_of(choices), expected, expected, 1e-6);

    // A bias decides who is chosen, and doesn't weigh.
    const std::vector<float> bias = random.normals(kExperts);
    const std::vector<float> factors = random.normals(kExperts);
    std::vector<float> keys(logits);
    for (size_t i = 0; i < kExperts; ++i) keys[i] = 1 / (1 + std::exp(-logits[i])) + bias[i];
    routing = {};
    routing.scoring = Scoring::Sigmoid;
    routing.selection_bias = bias;
    routing.expert_scale = factors;
    choices = routed(kernels, routing, logits);
    report.holds("route/sigmoid", experts_of(choices) == best_of(keys));
    expected.clear();
    for (const Choice& choice : choices) {
        const auto at = static_cast<size_t>(choice.expert);
        expected.push_back(factors[at] / (1 + std::exp(-double{logits[at]})));
    }
    report.bits("route/sigmoid", weights_of(choices));
    report.close("route/sigmoid", weights_of(choices), expected, std::vector<double>(kUsed, 3.0),
                 1e-6);

    // Of eight groups of twelve the two whose best two add up to most.
    routing.groups = 8;
    routing.groups_used = 2;
    routing.best_of_group = 2;
    std::vector<double> sums;
    for (size_t group = 0; group < 8; ++group) {
        std::vector<float> own(keys.begin() + static_cast<int64_t>(group * 12),
                               keys.begin() + static_cast<int64_t>(group * 12 + 12));
        std::sort(own.rbegin(), own.rend());
        sums.push_back(double{own[0]} + own[1]);
    }
    const double least = [&] {
        std::vector<double> sorted = sums;
        std::sort(sorted.rbegin(), sorted.rend());
        return sorted[1];
    }();
    for (size_t i = 0; i < kExperts; ++i) {
        if (sums[i / 12] < least) keys[i] = -std::numeric_limits<float>::infinity();
    }
    choices = routed(kernels, routing, logits);
    report.holds("route/groups", experts_of(choices) == best_of(keys));
}

// Whatever a router says, the experts are some that there are, each once; where it says what isn't
// a number, the weights aren't.
void report_failing_routers(const TokenKernels& kernels, const Report& report) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    Random random(12);
    bool valid = true;
    bool failed = true;
    for (const Scoring scoring : {Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxOfChosen}) {
        for (const int64_t groups : {1, 8}) {
            Routing routing;
            routing.scoring = scoring;
            routing.groups = groups;
            routing.groups_used = (groups + 1) / 2;
            routing.best_of_group = 2;
            routing.normalise = true;
            for (const size_t step : {1, 2, 95}) {
                std::vector<float> logits = random.normals(kExperts);
                for (size_t i = 0; i < kExperts; i += step) logits[i] = kNan;
                const std::vector<Choice> choices = routed(kernels, routing, logits);
                std::set<int32_t> different;
                for (const Choice& choice : choices) {
                    valid &= choice.expert >= 0 && choice.expert < int32_t{kExperts};
                    failed &= std::isnan(choice.weight);
                    different.insert(choice.expert);
                }
                valid &= different.size() == kUsed;
            }
        }
    }
    report.holds("route/nan_chooses_experts_that_there_are", valid);
    report.holds("route/nan_fails", failed);
}

void report_rows(const Report& report) {
    Random random(13);
    ExpertRows rows;
    rows.reserve(kExperts, 100 * kUsed);
    bool right = true;
    for (const size_t tokens : {1, 2, 100}) {
        std::vector<Choice> choices;
        for (size_t i = 0; i < tokens * kUsed; ++i) {
            choices.push_back({static_cast<int32_t>(random.next() % 7 * 13), 1.0f});
        }
        rows.arrange(choices, kExperts);
        right &= rows.tiles() <=
                 ExpertRows::most_tiles(static_cast<int64_t>(choices.size()), int64_t{kExperts});
        int64_t computed = 0;
        int64_t next_tile = 0;
        for (const ExpertRows::Chosen& chosen : rows.chosen()) {
            right &= chosen.first_tile == next_tile;
            next_tile += (chosen.rows + kRowTile - 1) / kRowTile;
            int32_t before = -1;
            for (int64_t i = 0; i < chosen.rows; ++i) {
                const int64_t row = chosen.first_tile * kRowTile + i;
                const int32_t choice = rows.choice_of(row);
                right &= choice > before && rows.row_of(choice) == row &&
                         choices[static_cast<size_t>(choice)].expert == chosen.expert;
                before = choice;
            }
            computed += chosen.rows;
        }
        int64_t in_tiles = 0;
        for (int64_t tile = 0; tile < rows.tiles(); ++tile) in_tiles += rows.rows_of_tile(tile);
        right &= next_tile == rows.tiles() && computed == static_cast<int64_t>(choices.size()) &&
                 in_tiles == computed;
    }
    report.holds("expert_rows", right);
}

}  // namespace

void report_routing(const KernelTable& table, const Report& report) {
    report_choices(table.token, report);
    report_failing_routers(table.token, report);
    report_rows(report);
}

}  // namespace caudal::report
