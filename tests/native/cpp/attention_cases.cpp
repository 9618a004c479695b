// Attention over a paged pool, cut into tiles of queries in more than one way.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

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
};

// One layer's pool with a sequence in scattered blocks.
class Sequence {
  public:
    Sequence(const KernelTable& table, const Shape& shape) : table_(table), shape_(shape) {
        const int64_t tokens = shape.context + shape.queries;
        const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
        const int64_t element = shape.type == KVType::F32 ? 4 : 2;
        layer_.type = shape.type;
        layer_.kv_heads = shape.kv_heads;
        layer_.key_dim = shape.key_dim;
        layer_.value_dim = shape.value_channels();
        // Blocks as far apart as the larger of keys and values needs.
        const int64_t channels = std::max(layer_.key_dim, layer_.value_dim);
        layer_.block_stride = shape.kv_heads * channels * kBlockTokens;
        const auto bytes = static_cast<size_t>(blocks * layer_.block_stride * element);
        key_bytes_.resize(bytes);
        layer_.keys = key_bytes_.data();
        if (!shape.latent) {
            value_bytes_.resize(bytes);
            layer_.values = value_bytes_.data();
        }
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
            keys_.push_back(std::move(key));
            values_.push_back(std::move(value));
        }
        queries_ = random.normals(static_cast<size_t>(shape.queries * query_width()));
        if (shape.sinks) sinks_ = random.normals(static_cast<size_t>(shape.heads));
    }

    size_t outputs() const {
        return static_cast<size_t>(shape_.queries * shape_.heads * layer_.value_dim);
    }

    // Stores the last token again, with a value that is NaN.
    void break_last_value() {
        const int64_t token = shape_.context + shape_.queries - 1;
        std::vector<float>& broken = shape_.latent ? keys_.back() : values_.back();
        const size_t head_width = broken.size() / static_cast<size_t>(shape_.kv_heads);
        for (size_t i = 0; i < broken.size(); i += head_width) broken[i] = std::nanf("");
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
                                        scratch.data(), into.view());
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
                        running.view().weighted + row * value_dim, running.view().sum[row],
                        out.data() + (query * shape_.heads + query_head) * value_dim, value_dim);
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
    std::vector<std::byte> key_bytes_;
    std::vector<std::byte> value_bytes_;
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
                     std::vector<double>(sequence.outputs(), 1.0), 2e-6);
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

        Sequence broken(table, shape);
        broken.break_last_value();
        const std::vector<float> after = broken.attend(shape.queries);
        // Who doesn't see the last token gets what it would get without.
        const int64_t blind = broken.queries_that_miss_the_last();
        const size_t seeing =
            after.size() / static_cast<size_t>(shape.queries) * static_cast<size_t>(blind);
        report.same(name + "/before_nan", std::span(after).first(seeing),
                    std::span(together).first(seeing));
        report.holds(name + "/nan_value",
                     std::all_of(after.begin() + static_cast<std::ptrdiff_t>(seeing), after.end(),
                                 [](float number) { return std::isnan(number); }));
    }
}

}  // namespace caudal::report
