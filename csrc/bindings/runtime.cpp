// The runtime for Python: weights, batches, executors. caudal.backends.native is its only user.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "isa/kernel_table.h"
#include "runtime/executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace caudal {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::byte> as_bytes(const Bytes& bytes) {
    return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

// Weights with the threads that pack and later run them: a team of their own, or that of others,
// which are then never packed or run at the same time.
class PyWeights {
  public:
    PyWeights(int threads, const PyWeights* beside)
        : kernels_(select_kernels()),
          threads_(beside == nullptr ? std::make_shared<ThreadTeam>(threads) : beside->threads_),
          weights_(kernels_, *threads_) {}

    int add_matrix(uint32_t type, int64_t rows, int64_t cols) {
        return weights_.add_matrix(static_cast<TensorType>(type), rows, cols);
    }

    void hold_image() { weights_.hold_image(); }
    void map_image(int descriptor, int64_t offset) { weights_.map_image({descriptor, offset}); }
    void write_image(int descriptor, int64_t offset) { weights_.write_image({descriptor, offset}); }

    void pack_matrix(int matrix, int descriptor, int64_t offset) {
        const nb::gil_scoped_release release;
        weights_.pack_matrix(matrix, {descriptor, offset});
    }

    void pack_rows(int matrix, int64_t first, const Bytes& data) {
        const nb::gil_scoped_release release;
        weights_.pack_rows(matrix, first, as_bytes(data));
    }

    bool has_rows(int matrix, int64_t first, const Bytes& data) const {
        return weights_.has_rows(matrix, first, as_bytes(data));
    }

    void read_matrices(int descriptor, int64_t offset, int first, int count,
                       const std::vector<uint64_t>& checksums) {
        const nb::gil_scoped_release release;
        weights_.read_matrices({descriptor, offset}, first, count, checksums);
    }

    std::vector<uint64_t> checksums() const {
        return {weights_.checksums().begin(), weights_.checksums().end()};
    }

    void choose_streams() {
        const nb::gil_scoped_release release;
        weights_.choose_streams();
    }

    // Of each type its name, the cache's level, bytes ahead, streams, and the measured rate.
    std::vector<std::tuple<std::string, int, int, int, double>> streams() const {
        std::vector<std::tuple<std::string, int, int, int, double>> streams;
        for (const StreamChoice& choice : weights_.streams()) {
            streams.emplace_back(block_geometry(choice.type).name,
                                 static_cast<int>(choice.policy.level), choice.policy.bytes_ahead,
                                 choice.policy.streams, choice.rate);
        }
        return streams;
    }

    // Empty until it is somewhere.
    nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> image() const {
        const std::span<const std::byte> bytes = weights_.image();
        return {bytes.data(), {bytes.size()}, nb::find(this)};
    }

    int group_experts(int first, int count) { return weights_.group_experts(first, count); }

    // Dequantises a whole small tensor.
    int add_vector(uint32_t type, const Bytes& data, int64_t length) {
        const BlockGeometry geometry = block_geometry(static_cast<TensorType>(type));
        if (length <= 0 || length % geometry.elements != 0 ||
            static_cast<int64_t>(data.size()) != length / geometry.elements * geometry.bytes) {
            throw std::invalid_argument("vector data has a wrong length");
        }
        // A vector is a matrix of one row; the kernels know how to read every type's rows.
        const auto tensor = static_cast<TensorType>(type);
        std::vector<std::byte> storage(kernels_.linear.packed_bytes(tensor, 1, length) +
                                       kAlignment);
        void* start = storage.data();
        size_t space = storage.size();
        auto* aligned = static_cast<std::byte*>(
            std::align(kAlignment, storage.size() - kAlignment, start, space));
        kernels_.linear.pack(tensor, as_bytes(data), 1, length, 0, 1, aligned);
        PackedMatrix row;
        row.type = tensor;
        row.rows = 1;
        row.cols = length;
        row.data = aligned;
        std::vector<float> values(static_cast<size_t>(length));
        kernels_.linear.unpack_row(row, 0, values.data());
        return weights_.add_vector(std::move(values));
    }

    const KernelTable& kernels() const { return kernels_; }
    ThreadTeam& threads() { return *threads_; }
    const Weights& weights() const { return weights_; }

  private:
    static constexpr size_t kAlignment = 64;

    const KernelTable& kernels_;
    std::shared_ptr<ThreadTeam> threads_;
    Weights weights_;
};

// A batch under construction; owns everything that the C++ batch refers to.
class PyBatch {
  public:
    // `second_segment`: position at which the second text of a pair begins; -1: there is none.
    void add_sequence(const std::vector<int32_t>& tokens, int64_t context,
                      std::vector<int32_t> block_table, int64_t second_segment) {
        const auto first = static_cast<int64_t>(tokens_.size());
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        tables_.push_back(std::move(block_table));
        batch_.sequences.push_back(
            {first, static_cast<int64_t>(tokens.size()), context, {}, second_segment, {}});
    }

    // Slots of the states of the sequence added last; -1 as the source: it begins.
    void set_states(int32_t source, int32_t destination) {
        if (batch_.sequences.empty()) throw std::invalid_argument("there is no sequence yet");
        batch_.sequences.back().state_source = source;
        batch_.sequences.back().state_destination = destination;
    }

    // The adapter of the sequence added last.
    void set_adapter(int32_t adapter) {
        if (batch_.sequences.empty()) throw std::invalid_argument("there is no sequence yet");
        batch_.sequences.back().adapter = adapter;
    }

    // The tables of sequence number `index` for each window pool.
    void set_window_tables(size_t index, std::vector<std::vector<int32_t>> tables) {
        window_tables_.resize(tables_.size());
        window_tables_.at(index) = std::move(tables);
    }

    // Sums the states of `count` tokens of the sequence added last, from its `first` on.
    void add_pooling(int64_t first, int64_t count, const Doubles& carry) {
        if (batch_.sequences.empty()) throw std::invalid_argument("there is no sequence to pool");
        batch_.pooling.push_back({batch_.sequences.back().first_token + first,
                                  count,
                                  {carry.data(), carry.data() + carry.size()}});
    }

    // Returns the states of the last `count` tokens of the sequence added last, one by one.
    void add_states(int64_t count) {
        if (batch_.sequences.empty()) throw std::invalid_argument("there is no sequence yet");
        const SequenceSlice& sequence = batch_.sequences.back();
        batch_.pooling.push_back({sequence.first_token + sequence.tokens - count, count, {}, true});
    }

    // What the program is given for the tokens of the sequence added last.
    void add_given(const Matrix& rows) {
        batch_.given.insert(batch_.given.end(), rows.data(), rows.data() + rows.size());
    }

    void add_copy(int32_t source, int32_t destination) {
        batch_.copies.emplace_back(source, destination);
    }

    void set_window_copies(std::vector<std::vector<BlockCopy>> copies) {
        batch_.window_copies = std::move(copies);
    }

    // Draws from the logits of token `index` of the sequence added last.
    void add_sample(int64_t index, double temperature, int64_t top_k, double top_p, double min_p,
                    double typical_p, uint64_t seed, uint32_t stream, uint32_t step,
                    int32_t logprobs, const nb::bytes& allowed_tokens,
                    std::vector<int32_t> banned_tokens) {
        if (batch_.sequences.empty())
            throw std::invalid_argument("there is no sequence to draw of");
        SamplingRow row;
        row.temperature = temperature;
        row.top_k = top_k;
        row.top_p = top_p;
        row.min_p = min_p;
        row.typical_p = typical_p;
        row.seed = seed;
        row.stream = stream;
        row.step = step;
        row.logprobs = logprobs;
        Extras& extras = extras_.emplace_back();
        extras.allowed.assign(
            reinterpret_cast<const std::byte*>(allowed_tokens.c_str()),
            reinterpret_cast<const std::byte*>(allowed_tokens.c_str()) + allowed_tokens.size());
        extras.banned = std::move(banned_tokens);
        batch_.samples.push_back({batch_.sequences.back().first_token + index, row});
    }

    // Penalties and biases of the sample added last; most requests have none.
    void adjust_sample(double repetition_penalty, double presence_penalty, double frequency_penalty,
                       std::vector<int32_t> prompt_tokens, std::vector<int32_t> output_tokens,
                       const std::vector<std::tuple<int32_t, float>>& logit_bias) {
        if (batch_.samples.empty()) throw std::invalid_argument("there is no sample to adjust");
        SamplingRow& row = batch_.samples.back().row;
        row.repetition_penalty = repetition_penalty;
        row.presence_penalty = presence_penalty;
        row.frequency_penalty = frequency_penalty;
        Extras& extras = extras_.back();
        extras.prompt = std::move(prompt_tokens);
        extras.output = std::move(output_tokens);
        for (const auto& [token, bias] : logit_bias) extras.bias.push_back({token, bias});
    }

    // Scores `target` under the logits of token `index` of the sequence added last.
    void add_score(int64_t index, int32_t target, int32_t top) {
        if (batch_.sequences.empty()) throw std::invalid_argument("there is no sequence to score");
        batch_.scores.push_back({batch_.sequences.back().first_token + index, target, top});
    }

    // Points the spans at what this object owns; valid until the next change.
    const Batch& view() {
        batch_.tokens = tokens_;
        for (size_t i = 0; i < tables_.size(); ++i) batch_.sequences[i].block_table = tables_[i];
        for (size_t i = 0; i < window_tables_.size(); ++i) {
            batch_.sequences[i].window_tables.assign(window_tables_[i].begin(),
                                                     window_tables_[i].end());
        }
        for (size_t i = 0; i < extras_.size(); ++i) {
            SamplingRow& row = batch_.samples[i].row;
            row.prompt_tokens = extras_[i].prompt;
            row.output_tokens = extras_[i].output;
            row.logit_bias = extras_[i].bias;
            row.banned_tokens = extras_[i].banned;
            row.allowed_mask = extras_[i].allowed;
        }
        return batch_;
    }

  private:
    struct Extras {
        std::vector<std::byte> allowed;
        std::vector<int32_t> banned;
        std::vector<int32_t> prompt;
        std::vector<int32_t> output;
        std::vector<LogitBias> bias;
    };

    Batch batch_;
    std::vector<int32_t> tokens_;
    std::vector<std::vector<int32_t>> tables_;
    std::vector<std::vector<std::vector<int32_t>>> window_tables_;  // empty: the model has none
    std::vector<Extras> extras_;
};

// (token, logprob, rank, [(token, logprob), …])
nb::tuple score_tuple(const TokenScore& score) {
    nb::list top;
    for (const ScoredToken& token : score.top)
        top.append(nb::make_tuple(token.token, token.logprob));
    return nb::make_tuple(score.token, score.logprob, score.rank, top);
}

class PyExecutor {
  public:
    // `weights` is shared: it must live as long as this.
    PyExecutor(PyWeights& weights, Program program, int64_t num_blocks,
               std::vector<int64_t> window_blocks, int64_t num_slots, const std::string& kv_type,
               bool float_activations, int64_t max_batch_tokens, int64_t weight_memory)
        : threads_(weights.threads()),
          executor_(weights.kernels(), weights.threads(), weights.weights(), std::move(program),
                    {num_blocks, std::move(window_blocks), num_slots, parse_kv_type(kv_type),
                     float_activations, max_batch_tokens, weight_memory}) {}

    // (matrix, a, b, scale) of each change.
    using Factors = std::tuple<int, Matrix, Matrix, float>;

    // (index, rank, bytes)
    nb::tuple load_adapter(const std::vector<Factors>& given) {
        std::vector<AdapterFactors> factors;
        for (const auto& [matrix, a, b, scale] : given) {
            factors.push_back({matrix,
                               static_cast<int64_t>(a.shape(0)),
                               {a.data(), a.size()},
                               {b.data(), b.size()},
                               scale});
        }
        Executor::LoadedAdapter loaded{};
        {
            const nb::gil_scoped_release release;
            loaded = executor_.load_adapter(factors);
        }
        return nb::make_tuple(loaded.index, loaded.rank, loaded.bytes);
    }

    void unload_adapter(int32_t index) { executor_.unload_adapter(index); }

    std::vector<size_t> block_bytes() const { return executor_.block_bytes(); }

    // Copies blocks of a kind, one behind the other, to `out`.
    void read_blocks(size_t kind, const std::vector<int64_t>& blocks, const WritableBytes& out) {
        std::span<std::byte> left = {reinterpret_cast<std::byte*>(out.data()), out.size()};
        const nb::gil_scoped_release release;
        for (const std::span<std::byte> block : blocks_of(kind, blocks, left.size())) {
            std::memcpy(left.data(), block.data(), block.size());
            left = left.subspan(block.size());
        }
    }

    // The other way round.
    void write_blocks(size_t kind, const std::vector<int64_t>& blocks, const Bytes& data) {
        std::span<const std::byte> left = as_bytes(data);
        const nb::gil_scoped_release release;
        for (const std::span<std::byte> block : blocks_of(kind, blocks, left.size())) {
            std::memcpy(block.data(), left.data(), block.size());
            left = left.subspan(block.size());
        }
    }

    // Runs a batch for its cost: [(stage, work seconds, wait seconds, bytes, operations, calls), …]
    nb::list profile(PyBatch& batch) {
        std::map<std::string, StageTimes> times;
        {
            const nb::gil_scoped_release release;
            executor_.execute(batch.view(), times);
        }
        nb::list stages;
        for (const auto& [name, cost] : times) {
            stages.append(nb::make_tuple(name, cost.work_seconds, cost.wait_seconds, cost.bytes,
                                         cost.operations, cost.calls));
        }
        return stages;
    }

    // Lets the processors go until the next batch.
    void rest() { threads_.rest(); }

    // ([(token, score or None, error or None), …], [(score or None, error or None), …], [sum, …])
    nb::tuple execute(PyBatch& batch) {
        BatchResult result;
        {
            const nb::gil_scoped_release release;
            result = executor_.execute(batch.view());
        }
        nb::list samples;
        for (const SampledToken& sample : result.samples) {
            const bool ok = sample.status == SamplingStatus::Ok;
            nb::object score = nb::none();
            if (sample.score) score = score_tuple(*sample.score);
            samples.append(nb::make_tuple(sample.token, score, message(ok, sample.status)));
        }
        nb::list scores;
        for (const ScoreResult& scored : result.scores) {
            const bool ok = scored.status == SamplingStatus::Ok;
            nb::object score = nb::none();
            if (ok) score = score_tuple(scored.score);
            scores.append(nb::make_tuple(score, message(ok, scored.status)));
        }
        nb::list pooled;
        for (std::vector<double>& sum : result.pooled) pooled.append(to_array(std::move(sum)));
        return nb::make_tuple(samples, scores, pooled);
    }

  private:
    // The bytes of blocks, `total` all together.
    std::vector<std::span<std::byte>> blocks_of(size_t kind, const std::vector<int64_t>& blocks,
                                                size_t total) {
        std::vector<std::span<std::byte>> found;
        size_t bytes = 0;
        for (const int64_t block : blocks) {
            bytes += found.emplace_back(executor_.block(kind, block)).size();
        }
        if (bytes != total) throw std::invalid_argument("blocks have another number of bytes");
        return found;
    }

    static nb::ndarray<nb::numpy, double, nb::ndim<1>> to_array(std::vector<double> values) {
        auto owned = std::make_unique<std::vector<double>>(std::move(values));
        std::vector<double>& kept = *owned;
        const nb::capsule owner(owned.release(), [](void* pointer) noexcept {
            std::unique_ptr<std::vector<double>>(static_cast<std::vector<double>*>(pointer));
        });
        return {kept.data(), {kept.size()}, owner};
    }

    static nb::object message(bool ok, SamplingStatus status) {
        if (ok) return nb::none();
        return nb::str(sampling_status_message(status));
    }

    static KVType parse_kv_type(const std::string& name) {
        if (name == "f16") return KVType::F16;
        if (name == "f32") return KVType::F32;
        if (name == "q8") return KVType::Q8;
        throw std::invalid_argument("kv_type must be 'f16', 'f32' or 'q8', but is '" + name + "'");
    }

    ThreadTeam& threads_;
    Executor executor_;
};

}  // namespace

void bind_runtime(nb::module_& module) {
    module.def(
        "instruction_set", [] { return select_kernels().name; },
        "Name of the kernels that run on this machine.");
    module.attr("BLOCK_TOKENS") = kBlockTokens;
    module.attr("PANEL_ROWS") = kPanelRows;
    module.def(
        "weight_layout", [] { return select_kernels().linear.layout; },
        "Number of the layout of packed weights that the kernels on this machine read.");

    nb::class_<PyWeights>(module, "Weights")
        .def(nb::init<int, const PyWeights*>(), "threads"_a, "beside"_a.none() = nb::none())
        .def("add_matrix", &PyWeights::add_matrix, "type"_a, "rows"_a, "cols"_a)
        .def("hold_image", &PyWeights::hold_image)
        .def("map_image", &PyWeights::map_image, "descriptor"_a, "offset"_a)
        .def("write_image", &PyWeights::write_image, "descriptor"_a, "offset"_a)
        .def("pack_matrix", &PyWeights::pack_matrix, "matrix"_a, "descriptor"_a, "offset"_a)
        .def("pack_rows", &PyWeights::pack_rows, "matrix"_a, "first"_a, "data"_a)
        .def("has_rows", &PyWeights::has_rows, "matrix"_a, "first"_a, "data"_a)
        .def("read_matrices", &PyWeights::read_matrices, "descriptor"_a, "offset"_a, "first"_a,
             "count"_a, "checksums"_a)
        .def_prop_ro("checksums", &PyWeights::checksums)
        .def("choose_streams", &PyWeights::choose_streams)
        .def_prop_ro("streams", &PyWeights::streams)
        .def_prop_ro("image", &PyWeights::image)
        .def_prop_ro("image_bytes",
                     [](const PyWeights& self) { return self.weights().image_bytes(); })
        .def("group_experts", &PyWeights::group_experts, "first"_a, "count"_a)
        .def("add_vector", &PyWeights::add_vector, "type"_a, "data"_a, "length"_a)
        .def_prop_ro("bytes", [](const PyWeights& self) { return self.weights().bytes(); });

    nb::class_<PyBatch>(module, "Batch")
        .def(nb::init<>())
        .def("add_sequence", &PyBatch::add_sequence, "tokens"_a, "context"_a, "block_table"_a,
             "second_segment"_a)
        .def("add_pooling", &PyBatch::add_pooling, "first"_a, "count"_a, "carry"_a)
        .def("add_states", &PyBatch::add_states, "count"_a)
        .def("add_given", &PyBatch::add_given, "rows"_a)
        .def("add_copy", &PyBatch::add_copy, "source"_a, "destination"_a)
        .def("set_states", &PyBatch::set_states, "source"_a, "destination"_a)
        .def("set_adapter", &PyBatch::set_adapter, "adapter"_a)
        .def("set_window_tables", &PyBatch::set_window_tables, "index"_a, "tables"_a)
        .def("set_window_copies", &PyBatch::set_window_copies, "copies"_a)
        .def("add_sample", &PyBatch::add_sample, "index"_a, "temperature"_a, "top_k"_a, "top_p"_a,
             "min_p"_a, "typical_p"_a, "seed"_a, "stream"_a, "step"_a, "logprobs"_a,
             "allowed_tokens"_a, "banned_tokens"_a)
        .def("adjust_sample", &PyBatch::adjust_sample, "repetition_penalty"_a, "presence_penalty"_a,
             "frequency_penalty"_a, "prompt_tokens"_a, "output_tokens"_a, "logit_bias"_a)
        .def("add_score", &PyBatch::add_score, "index"_a, "target"_a, "top"_a);

    nb::class_<PyExecutor>(module, "Executor")
        .def(nb::init<PyWeights&, Program, int64_t, std::vector<int64_t>, int64_t,
                      const std::string&, bool, int64_t, int64_t>(),
             nb::keep_alive<1, 2>(), "weights"_a, "program"_a, "num_blocks"_a, "window_blocks"_a,
             "num_slots"_a, "kv_type"_a, "float_activations"_a, "max_batch_tokens"_a,
             "weight_memory"_a)
        .def("load_adapter", &PyExecutor::load_adapter, "changes"_a)
        .def("unload_adapter", &PyExecutor::unload_adapter, "index"_a)
        .def_prop_ro("block_bytes", &PyExecutor::block_bytes)
        .def("read_blocks", &PyExecutor::read_blocks, "kind"_a, "blocks"_a, "out"_a)
        .def("write_blocks", &PyExecutor::write_blocks, "kind"_a, "blocks"_a, "data"_a)
        .def("execute", &PyExecutor::execute, "batch"_a)
        .def("profile", &PyExecutor::profile, "batch"_a)
        .def("rest", &PyExecutor::rest);
}

}  // namespace caudal
