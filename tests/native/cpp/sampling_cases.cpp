// The passes over the vocabulary, and the tokens that the sampler chooses with them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sampler.h"
#include "report.h"

namespace caudal::report {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> logits_of(size_t vocab, bool strange) {
    std::vector<float> logits = Random(vocab).normals(vocab);
    for (float& logit : logits) logit *= 4;
    if (strange) {
        logits[3] = kInfinity;
        logits[4] = -kInfinity;
        logits[5] = std::numeric_limits<float>::quiet_NaN();
        logits[vocab - 1] = std::numeric_limits<float>::quiet_NaN();
    }
    return logits;
}

void report_passes(const SamplingKernels& kernels, const Report& report, size_t vocab,
                   bool strange) {
    const std::vector<float> logits = logits_of(vocab, strange);
    const std::string name = std::string("sampling/") + (strange ? "strange/" : "");
    const std::string suffix = std::to_string(vocab);
    std::vector<float> maxima(vocab_blocks(vocab));
    kernels.block_maxima(logits, maxima);
    std::vector<float> expected_maxima(maxima.size(), -kInfinity);
    float largest = -kInfinity;
    for (size_t i = 0; i < vocab; ++i) {
        float& maximum = expected_maxima[i / kVocabBlock];
        if (logits[i] > maximum) maximum = logits[i];
        if (logits[i] > largest && logits[i] < kInfinity) largest = logits[i];
    }
    report.same(name + "maxima/" + suffix, maxima, expected_maxima);

    const Softmax softmax = {strange ? std::numeric_limits<float>::max() : largest, 1 / 0.7f};
    std::vector<float> weights(vocab);
    kernels.weights(logits, softmax, weights);
    report.bits(name + "weights/" + suffix, weights);
    std::vector<double> expected(vocab);
    for (size_t i = 0; i < vocab; ++i) {
        const float capped = std::min(logits[i], std::numeric_limits<float>::max());
        // The exponent is rounded by the definition of a weight; only e^x is compared.
        const float exponent = (capped - softmax.maximum) * softmax.scale;
        expected[i] = exponent >= -87.0f ? std::exp(double{exponent}) : 0.0;
        if (std::isnan(logits[i])) expected[i] = 0;
    }
    report.close(name + "weights/" + suffix, weights, expected, expected, 2e-7);

    std::vector<float> masses(vocab_blocks(vocab));
    kernels.block_masses(logits, maxima, softmax, masses);
    std::vector<double> expected_masses(masses.size());
    for (size_t i = 0; i < vocab; ++i) expected_masses[i / kVocabBlock] += weights[i];
    report.bits(name + "masses/" + suffix, masses);
    report.close(name + "masses/" + suffix, masses, expected_masses, expected_masses, 2e-6);
    // So cold that most blocks weigh nothing: what isn't read must be what reading would give.
    const Softmax cold = {softmax.maximum, 30.0f};
    kernels.weights(logits, cold, weights);
    kernels.block_masses(logits, maxima, cold, masses);
    std::fill(expected_masses.begin(), expected_masses.end(), 0.0);
    for (size_t i = 0; i < vocab; ++i) expected_masses[i / kVocabBlock] += weights[i];
    report.close(name + "masses/cold/" + suffix, masses, expected_masses, expected_masses, 2e-6);

    Random random(6);
    std::vector<std::byte> mask(vocab / 8);
    for (std::byte& byte : mask) byte = static_cast<std::byte>(random.next() >> 56);
    // Whole blocks, and the half of one, of which nothing is allowed.
    for (size_t i = 0; i < mask.size(); ++i) {
        if (i / (kVocabBlock / 16) % 5 < 3) mask[i] = {};
    }
    std::vector<float> masked(vocab);
    kernels.masked_maxima(logits, mask, masked, maxima);
    std::vector<float> expected_masked(vocab, -kInfinity);
    for (size_t i = 0; i < mask.size() * 8; ++i) {
        if ((static_cast<unsigned>(mask[i / 8]) >> (i % 8) & 1u) != 0) {
            expected_masked[i] = logits[i];
        }
    }
    report.same(name + "mask/" + suffix, masked, expected_masked);
    kernels.block_maxima(masked, expected_maxima);
    report.same(name + "mask/maxima/" + suffix, maxima, expected_maxima);
}

void report_tokens(const SamplingKernels& kernels, const Report& report) {
    const std::vector<float> logits = logits_of(5003, false);
    SamplingScratch scratch;
    std::vector<float> tokens;
    for (uint32_t step = 0; step < 60; ++step) {
        SamplingRow row;
        row.temperature = step % 5 == 0 ? 0.0 : 0.5 + 0.1 * step;
        row.top_k = step % 3 == 0 ? 40 : 0;
        row.top_p = step % 2 == 0 ? 0.9 : 1.0;
        row.min_p = step % 7 == 0 ? 0.01 : 0.0;
        row.typical_p = step % 11 == 0 ? 0.8 : 1.0;
        row.seed = 42;
        row.step = step;
        row.logprobs = 3;
        const SampledToken sampled = sample_row(kernels, logits, row, scratch);
        tokens.push_back(static_cast<float>(sampled.token));
        for (const ScoredToken& scored : sampled.score->top) tokens.push_back(scored.logprob);
    }
    report.bits("sampling/tokens", tokens);
}

}  // namespace

void report_sampling(const KernelTable& table, const Report& report) {
    for (const size_t vocab : {size_t{9}, size_t{128}, size_t{5003}}) {
        report_passes(table.sampling, report, vocab, false);
        report_passes(table.sampling, report, vocab, true);
    }
    report_tokens(table.sampling, report);
}

}  // namespace caudal::report
