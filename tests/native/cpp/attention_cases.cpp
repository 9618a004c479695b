// Attention over a paged pool, cut into tiles of queries in more than one way.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "quant/half.h"
#include "report.h"

namespace caudal::report {

namespace {

struct Shape {
    const char* name;
    int64_t heads;
    int64_t kv_heads;
    int64_t key_dim;
    KVType type;
    int64_t window;
    int64_t context;  // tokens before the queries
    int64_t queries;
    bool causal = true;
    int64_t value_dim = 0;  // 0: as keys
    bool latent = false;
    float softcap = 0.0f;
    bool sinks = false;
    bool chunked = false;

    int64_t value_channels() const { return value_dim > 0 ? value_dim : key_dim; }
};

// What makes a value one that nothing can be computed with.
constexpr std::pair<const char*, float> kBroken[] = {
    {"nan", std::numeric_limits<float>::quiet_NaN()},
    // What rounding the bits up to 16 of them would carry into the sign.
    {"high_nan", std::bit_cast<float>(0x7fffe000)},
    {"inf", std::numeric_limits<float>::infinity()},
    {"minus_inf", -std::numeric_limits<float>::infinity()},
};

constexpr Shape kShapes[] = {
    {"grouped", 6, 2, 64, KVType::F16, 0, 530, 9},
    {"one_query", 6, 2, 64, KVType::F16, 0, 1029, 1},
    {"fp32", 4, 4, 40, KVType::F32, 0, 20, 11},
    {"window", 4, 1, 32, KVType::F16, 19, 500, 14},
    {"chunks", 4, 1, 32, KVType::F16, 262, 500, 40, true, 0, false, 0.0f, false, true},
    {"from_the_start", 7, 1, 8, KVType::F32, 0, 0, 5},
    {"both_ways", 3, 3, 24, KVType::F32, 0, 0, 37, false},
    {"both_ways_window", 4, 2, 16, KVType::F16, 21, 0, 60, false},
    {"softcap", 4, 2, 32, KVType::F16, 0, 300, 9, true, 0, false, 2.0f},
    {"sinks", 6, 2, 32, KVType::F16, 40, 290, 7, true, 0, false, 0.0f, true},
    {"wide_values", 4, 2, 24, KVType::F16, 0, 300, 7, true, 56},
    {"narrow_values", 4, 2, 40, KVType::F32, 33, 300, 7, true, 8, false, 3.0f, true},
    {"latent", 20, 1, 88, KVType::F16, 0, 530, 4, true, 72, true},
    {"latent_fp32", 7, 1, 32, KVType::F32, 30, 260, 9, true, 16, true, 0.0f, true},
    {"bytes", 6, 2, 64, KVType::Q8, 0, 530, 9},
    {"bytes_one_query", 8, 2, 256, KVType::Q8, 0, 1029, 1},
    {"bytes_window", 4, 1, 40, KVType::Q8, 19, 500, 14, true, 72},
    {"bytes_chunks", 7, 1, 96, KVType::Q8, 262, 500, 40, true, 8, false, 0.0f, false, true},
    {"bytes_both_ways", 3, 3, 24, KVType::Q8, 0, 0, 37, false},
    {"bytes_capped_sinks", 5, 1, 80, KVType::Q8, 40, 290, 7, true, 32, false, 3.0f, true},
    {"bytes_latent", 20, 1, 88, KVType::Q8, 0, 530, 4, true, 72, true},
    {"bytes_wide_latent", 3, 1, 576, KVType::Q8, 0, 70, 2, true, 512, true},
};

// One layer's pool with a sequence in scattered blocks.
class Sequence {
  public:
    Sequence(const KernelTable& table, const Shape& shape) : table_(table), shape_(shape) {
        const int64_t tokens = shape.context + shape.queries;
        const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
        layer_ = KVLayer::at(nullptr, shape.type, shape.kv_heads, shape.key_dim,
                             shape.value_channels(), shape.latent);
        bytes_.resize(static_cast<size_t>(blocks * kBlockTokens * layer_.token_bytes()));
        layer_ = KVLayer::at(bytes_.data(), shape.type, shape.kv_heads, shape.key_dim,
                             shape.value_channels(), shape.latent);
        // 7 has no factor in common with the numbers of blocks here: a permutation.
        for (int64_t i = 0; i < blocks; ++i) {
            block_table_.push_back(static_cast<int32_t>((i * 7 + 3) % blocks));
        }
        Random random(11);
        for (int64_t token = 0; token < tokens; ++token) {
            std::vector<float> key =
                random.normals(static_cast<size_t>(shape.kv_heads * shape.key_dim));
            std::vector<float> value =
                random.normals(static_cast<size_t>(shape.kv_heads * layer_.value_dim));
            if (shape.latent) std::copy_n(key.begin(), value.size(), value.begin());
            table.token.store_kv(layer_, block_table_[static_cast<size_t>(token / kBlockTokens)],
                                 token % kBlockTokens, key.data(), value.data());
            if (shape.type == KVType::F16) {
                for (float& number : key) number = half_to_float(float_to_half(number));
                for (float& number : value) number = half_to_float(float_to_half(number));
            }
            if (shape.type == KVType::Q8) read_back(token, key, value);
            keys_.push_back(std::move(key));
            values_.push_back(std::move(value));
        }
        queries_ = random.normals(static_cast<size_t>(shape.queries * query_width()));
        if (shape.sinks) sinks_ = random.normals(static_cast<size_t>(shape.heads));
    }

    size_t outputs() const {
        return static_cast<size_t>(shape_.queries * shape_.heads * layer_.value_dim);
    }

    // Stores the last token again, with a value in which each head begins with `number`.
    void break_last_value(float number) {
        const int64_t token = shape_.context + shape_.queries - 1;
        std::vector<float>& broken = shape_.latent ? keys_.back() : values_.back();
        const size_t head_width = broken.size() / static_cast<size_t>(shape_.kv_heads);
        for (size_t i = 0; i < broken.size(); i += head_width) broken[i] = number;
        table_.token.store_kv(layer_, block_table_[static_cast<size_t>(token / kBlockTokens)],
                              token % kBlockTokens, keys_.back().data(), values_.back().data());
    }

    int64_t queries_that_miss_the_last() const {
        int64_t query = 0;
        while (end_seen(shape_.context + query) < shape_.context + shape_.queries) ++query;
        return query;
    }

    // Makes the first head of the last query one that holds `number`; returns where its output is.
    size_t set_query(float number) {
        queries_[static_cast<size_t>((shape_.queries - 1) * query_width())] = number;
        return outputs() - static_cast<size_t>(shape_.heads * layer_.value_dim);
    }

    // [query][heads][value_dim], from tiles of `tile` queries.
    std::vector<float> attend(int64_t tile) const {
        const AttentionShape shape = {shape_.heads,  scale(),        shape_.window,
                                      shape_.causal, shape_.softcap, shape_.chunked};
        const AttentionQueries queries = {queries_.data(), query_width(), shape_.queries,
                                          shape_.context,  block_table_,  {}};
        const int64_t group = shape_.heads / shape_.kv_heads;
        const int64_t value_dim = layer_.value_dim;
        std::vector<float> out(outputs());
        for (int64_t first = 0; first < shape_.queries; first += tile) {
            const int64_t count = std::min(tile, shape_.queries - first);
            std::vector<float> scratch(table_.token.attend_scratch(layer_, shape, count));
            const int64_t oldest = first_seen(shape_.context + first);
            const int64_t last = end_seen(shape_.context + first + count - 1) - 1;
            for (int64_t head = 0; head < shape_.kv_heads; ++head) {
                Partial running(count * group, value_dim);
                Partial later(count * group, value_dim);
                const int64_t begin = oldest / kPartitionTokens;
                for (int64_t p = begin; p <= last / kPartitionTokens; ++p) {
                    Partial& into = p == begin ? running : later;
                    const AttentionStart next =
                        queries.start(shape, (head + 1) % shape_.kv_heads, first, begin);
                    table_.token.attend(layer_, shape, queries, head, first, count, p, next,
                                        p > begin, scratch.data(), into.view());
                    if (p > begin) {
                        table_.token.merge_partials(running.view(), later.view(), count * group,
                                                    value_dim);
                    }
                }
                if (shape_.sinks) {
                    const auto sinks = std::span(sinks_).subspan(static_cast<size_t>(head * group),
                                                                 static_cast<size_t>(group));
                    table_.token.add_sinks(running.view(), sinks, count * group, value_dim);
                }
                for (int64_t row = 0; row < count * group; ++row) {
                    const int64_t query = first + row / group;
                    const int64_t query_head = head * group + row % group;
                    table_.token.normalise(
                        layer_, running.view().weighted + row * value_dim, running.view().sum[row],
                        out.data() + (query * shape_.heads + query_head) * value_dim);
                }
            }
        }
        return out;
    }

    std::vector<double> expected() const {
        std::vector<double> out;
        for (int64_t query = 0; query < shape_.queries; ++query) {
            for (int64_t head = 0; head < shape_.heads; ++head) {
                append_expected(query, head, out);
            }
        }
        return out;
    }

  private:
    struct Partial {
        Partial(int64_t rows, int64_t value_dim)
            : maximum(static_cast<size_t>(rows)),
              sum(static_cast<size_t>(rows)),
              weighted(static_cast<size_t>(rows * value_dim)) {}
        AttentionPartial view() { return {maximum.data(), sum.data(), weighted.data()}; }

        std::vector<float> maximum;
        std::vector<float> sum;
        std::vector<float> weighted;
    };

    // What was stored of a token, in floats: bytes times scales, turned back.
    void read_back(int64_t token, std::vector<float>& key, std::vector<float>& value) const {
        const int64_t block = block_table_[static_cast<size_t>(token / kBlockTokens)];
        const int64_t place = token % kBlockTokens;
        const int64_t key_dim = layer_.key_dim;
        const int64_t value_dim = layer_.value_dim;
        for (int64_t head = 0; head < layer_.kv_heads; ++head) {
            const std::byte* keys = layer_.keys + layer_.key_offset(block, head);
            const auto scale = [&](int64_t which) {
                uint16_t upper;
                std::memcpy(&upper, keys + (key_dim + 2 * which) * kBlockTokens + 2 * place, 2);
                return double{std::bit_cast<float>(static_cast<uint32_t>(upper) << 16)};
            };
            const auto code = [](std::byte byte) { return static_cast<int>(byte) - 128; };
            std::vector<double> numbers;
            for (int64_t i = 0; i < key_dim; ++i) {
                const double of = scale(layer_.latent() && i >= value_dim ? 1 : 0);
                numbers.push_back(of * code(keys[(i / 4 * kBlockTokens + place) * 4 + i % 4]));
            }
            float* const to = key.data() + head * key_dim;
            turn_back(std::span(numbers).first(static_cast<size_t>(split())), to);
            turn_back(std::span(numbers).subspan(static_cast<size_t>(split())), to + split());
            if (layer_.latent()) {
                std::copy_n(to, value_dim, value.data());
                continue;
            }
            const std::byte* values = layer_.values + layer_.value_offset(block, head);
            numbers.clear();
            for (int64_t i = 0; i < value_dim; ++i) {
                const int64_t at = (place / 4 * value_dim + i) * 4 + place % 4;
                numbers.push_back(scale(1) * code(values[at]));
            }
            turn_back(numbers, value.data() + head * value_dim);
        }
    }

    // Channels that are turned by themselves.
    int64_t split() const { return layer_.latent() ? layer_.value_dim : layer_.key_dim; }

    static void turn_back(std::span<const double> numbers, float* to) {
        const size_t length = numbers.size() & (~numbers.size() + 1);
        for (size_t i = 0; i < numbers.size(); ++i) {
            const size_t begin = i / length * length;
            double sum = 0;
            for (size_t j = 0; j < length; ++j) {
                const bool minus = std::popcount((i - begin) & j) % 2 == 1;
                sum += minus ? -numbers[begin + j] : numbers[begin + j];
            }
            to[i] = static_cast<float>(sum / static_cast<double>(length));
        }
    }

    int64_t query_width() const { return shape_.heads * shape_.key_dim; }
    float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.key_dim)); }

    int64_t first_seen(int64_t position) const {
        if (shape_.window == 0) return 0;
        if (shape_.chunked) return position / shape_.window * shape_.window;
        const int64_t before = shape_.causal ? shape_.window - 1 : shape_.window / 2;
        return std::max<int64_t>(0, position - before);
    }
    int64_t end_seen(int64_t position) const {
        const int64_t known = shape_.context + shape_.queries;
        if (shape_.causal) return position + 1;
        return shape_.window == 0 ? known : std::min(known, position + shape_.window / 2 + 1);
    }

    void append_expected(int64_t query, int64_t head, std::vector<double>& out) const {
        const float* q = queries_.data() + query * query_width() + head * shape_.key_dim;
        const int64_t position = shape_.context + query;
        const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
        std::vector<double> result(static_cast<size_t>(layer_.value_dim));
        double sum = shape_.sinks ? std::exp(double{sinks_[static_cast<size_t>(head)]}) : 0.0;
        for (int64_t token = first_seen(position); token < end_seen(position); ++token) {
            const float* key = keys_[static_cast<size_t>(token)].data() + kv_head * shape_.key_dim;
            const float* value =
                values_[static_cast<size_t>(token)].data() + kv_head * layer_.value_dim;
            double score = 0;
            for (int64_t i = 0; i < shape_.key_dim; ++i) score += double{q[i]} * key[i];
            score *= scale();
            if (shape_.softcap > 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
            const double weight = std::exp(score);
            sum += weight;
            for (size_t i = 0; i < result.size(); ++i) result[i] += weight * value[i];
        }
        for (const double number : result) out.push_back(number / sum);
    }

    const KernelTable& table_;
    Shape shape_;
    KVLayer layer_;
    std::vector<std::byte> bytes_;
    std::vector<int32_t> block_table_;
    std::vector<std::vector<float>> keys_;
    std::vector<std::vector<float>> values_;
    std::vector<float> queries_;
    std::vector<float> sinks_;
};

}  // namespace

void report_attention(const KernelTable& table, const Report& report) {
    for (const Shape& shape : kShapes) {
        const Sequence sequence(table, shape);
        const std::string name = std::string("attention/") + shape.name;
        const std::vector<float> together = sequence.attend(shape.queries);
        report.bits(name, together);
        report.close(name, together, sequence.expected(),
                     std::vector<double>(sequence.outputs(), 1.0),
                     shape.type == KVType::Q8 ? 1e-4 : 2e-6);
        report.same(name + "/alone", sequence.attend(1), together);
        report.same(name + "/threes", sequence.attend(3), together);

        // One whose exponent an addition to its bits would carry away.
        Sequence failing = sequence;
        const size_t first = failing.set_query(std::bit_cast<float>(0x7fc00001));
        std::vector<float> output = failing.attend(shape.queries);
        const auto channels = static_cast<size_t>(shape.value_channels());
        const auto failed = std::span(output).subspan(first, channels);
        report.holds(name + "/nan", std::all_of(failed.begin(), failed.end(),
                                                [](float number) { return std::isnan(number); }));
        std::copy_n(together.begin() + static_cast<std::ptrdiff_t>(first), channels,
                    output.begin() + static_cast<std::ptrdiff_t>(first));
        report.same(name + "/beside_nan", output, together);

        // Who doesn't see the last token gets what it would get without.
        const int64_t blind = sequence.queries_that_miss_the_last();
        const size_t seeing =
            together.size() / static_cast<size_t>(shape.queries) * static_cast<size_t>(blind);
        for (const auto& [kind, number] : kBroken) {
            // Kept as a float, infinity is one channel's affair.
            if (shape.type != KVType::Q8 && !std::isnan(number)) continue;
            Sequence broken(table, shape);
            broken.break_last_value(number);
            const std::vector<float> after = broken.attend(shape.queries);
            report.same(name + "/before_" + kind, std::span(after).first(seeing),
                        std::span(together).first(seeing));
            report.holds(name + "/" + kind + "_value",
                         std::all_of(after.begin() + static_cast<std::ptrdiff_t>(seeing),
                                     after.end(), [](float each) { return std::isnan(each); }));
        }
        // Bytes keep what is far beyond 16-bit floats; what is beyond them is nobody else's affair.
        for (const float number : {1e30f, std::numeric_limits<float>::max()}) {
            if (shape.type != KVType::Q8) continue;
            Sequence large(table, shape);
            large.break_last_value(number);
            const std::vector<float> after = large.attend(shape.queries);
            const std::string kind = number < 1e31f ? "large" : "largest";
            report.same(name + "/before_" + kind, std::span(after).first(seeing),
                        std::span(together).first(seeing));
            const bool finite = std::all_of(after.begin(), after.end(),
                                            [](float each) { return std::isfinite(each); });
            if (number < 1e31f) report.holds(name + "/" + kind + "_value", finite);
        }
    }
}

}  // namespace caudal::report
