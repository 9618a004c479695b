#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "isa/kernel_table.h"
#include "kernels/philox.h"
#include "kernels/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace caudal {

namespace {

using LogitsArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const float> row_of(const LogitsArray& logits) {
    return {logits.data(), logits.size()};
}

// (token, logprob, rank, [(token, logprob), …])
nb::tuple to_python(const TokenScore& score) {
    nb::list top;
    for (const ScoredToken& entry : score.top) {
        top.append(nb::make_tuple(entry.token, entry.logprob));
    }
    return nb::make_tuple(score.token, score.logprob, score.rank, top);
}

// Kept between calls as a runtime thread keeps it, so that tests see what one call leaves behind.
SamplingScratch& scratch() {
    thread_local SamplingScratch instance;
    return instance;
}

nb::tuple sample(const LogitsArray& logits, double temperature, int64_t top_k, double top_p,
                 double min_p, double typical_p, double repetition_penalty, double presence_penalty,
                 double frequency_penalty, uint64_t seed, uint32_t stream, uint32_t step,
                 const std::vector<int32_t>& prompt_tokens,
                 const std::vector<int32_t>& output_tokens,
                 const std::vector<std::pair<int32_t, float>>& logit_bias,
                 const std::vector<int32_t>& banned_tokens, const nb::bytes& allowed_mask,
                 int32_t logprobs) {
    std::vector<LogitBias> biases;
    biases.reserve(logit_bias.size());
    for (const auto& [token, bias] : logit_bias) biases.push_back({token, bias});
    SamplingRow row;
    row.temperature = temperature;
    row.top_k = top_k;
    row.top_p = top_p;
    row.min_p = min_p;
    row.typical_p = typical_p;
    row.repetition_penalty = repetition_penalty;
    row.presence_penalty = presence_penalty;
    row.frequency_penalty = frequency_penalty;
    row.seed = seed;
    row.stream = stream;
    row.step = step;
    row.prompt_tokens = prompt_tokens;
    row.output_tokens = output_tokens;
    row.logit_bias = biases;
    row.banned_tokens = banned_tokens;
    row.allowed_mask = std::as_bytes(std::span(allowed_mask.c_str(), allowed_mask.size()));
    row.logprobs = logprobs;
    const SampledToken sampled =
        sample_row(select_kernels().sampling, row_of(logits), row, scratch());
    if (sampled.status != SamplingStatus::Ok) {
        throw std::invalid_argument(sampling_status_message(sampled.status));
    }
    if (sampled.score) return to_python(*sampled.score);
    return nb::make_tuple(sampled.token, nb::none(), nb::none(), nb::list());
}

nb::tuple score(const LogitsArray& logits, int32_t token, int32_t top) {
    TokenScore result;
    const SamplingStatus status =
        score_row(select_kernels().sampling, row_of(logits), token, top, scratch(), result);
    if (status != SamplingStatus::Ok) throw std::invalid_argument(sampling_status_message(status));
    return to_python(result);
}

void weights(const LogitsArray& logits, float maximum, float scale,
             nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
    if (out.size() != logits.size()) throw std::invalid_argument("out must be as long as logits");
    select_kernels().sampling.weights(row_of(logits), {maximum, scale}, {out.data(), out.size()});
}

}  // namespace

void bind_sampling(nb::module_& parent) {
    nb::module_ module =
        parent.def_submodule("sampling", "The sampler by itself, for tests and benchmarks.");
    module.def("sample", sample, "logits"_a, nb::kw_only(), "temperature"_a = 1.0, "top_k"_a = 0,
               "top_p"_a = 1.0, "min_p"_a = 0.0, "typical_p"_a = 1.0, "repetition_penalty"_a = 1.0,
               "presence_penalty"_a = 0.0, "frequency_penalty"_a = 0.0, "seed"_a = 0,
               "stream"_a = 0, "step"_a = 0, "prompt_tokens"_a = std::vector<int32_t>(),
               "output_tokens"_a = std::vector<int32_t>(),
               "logit_bias"_a = std::vector<std::pair<int32_t, float>>(),
               "banned_tokens"_a = std::vector<int32_t>(), "allowed_mask"_a = nb::bytes("", 0),
               "logprobs"_a = -1,
               "Choose a token: (token, logprob, rank, top); logprob and rank are None and top is "
               "empty unless logprobs is at least 0. Raises ValueError if no token is possible.");
    module.def("score", score, "logits"_a, "token"_a, "top"_a = 0,
               "Score a token under a row: (token, logprob, rank, top).");
    module.def("weights", weights, "logits"_a, "maximum"_a, "scale"_a, "out"_a,
               "Write e^((logit - maximum) * scale) to out.");
    module.def("philox4x32_10", &philox4x32_10, "counter"_a, "key"_a,
               "The block cipher behind the random numbers: four words for four.");
    module.def("uniform", &philox_uniform, "seed"_a, "stream"_a, "step"_a,
               "The random number, in (0, 1], that one token is drawn with.");
}

}  // namespace caudal
