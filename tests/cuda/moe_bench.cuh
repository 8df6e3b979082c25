// A layer of the fused kernel on the first GPUs with random weights, for the tests: routings,
// launches, comparisons with the plain fp32 layer and of bits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/moe/block.cuh"
#include "cuda/moe/layer.hpp"
#include "moe_reference.cuh"

namespace xstage::moe_test {

using layout::MoeDispatch;
using schedule::MoeSchedule;

struct Sizes {
  std::string name;
  int ranks;
  std::int64_t hidden, intermediate, experts, topk, capacity;
  WeightFormat format = WeightFormat::kW8A8;
  int workers = 0;                       ///< 0: one an SM, of its part where ranks share a GPU
  std::chrono::milliseconds wait{1500};  ///< limit of a launch's waits, but the first's
  std::chrono::nanoseconds in_block{0};  ///< limit of waits inside a block; 0: twice that
  int ranks_per_gpu = 1;
};

inline bool g_ok = true;
inline void expect(bool ok, const char* format, const std::string& name, double value) {
  g_ok = g_ok && ok;
  std::printf("%s %-40s ", ok ? "ok    " : "WRONG ", name.c_str());
  std::printf(format, value);
  std::printf("\n");
}

template <class T>
T must(Result<T> result, const char* what) {
  if (!result) {
    std::printf("FAILED %s: %s\n", what, result.error().message().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

class Bench {
 public:
  Bench(const Sizes& sizes, std::uint64_t seed, float clamp = 0) : z_(sizes), seed_(seed) {
    if (z_.format == WeightFormat::kBf16) z_.name += " bf16";

    cudaDeviceProp gpu{};
    check(cudaGetDeviceProperties(&gpu, 0), "properties");
    config_.ranks = z_.ranks;
    config_.topk = static_cast<std::int32_t>(z_.topk);
    config_.experts = z_.experts;
    config_.hidden = z_.hidden;
    config_.intermediate = z_.intermediate;
    config_.capacity = z_.capacity;
    config_.activation.clamp = clamp;
    config_.format = z_.format;
    config_.schedule = MoeSchedule::interleaved(8);
    config_ = moe::with_tiles(
        config_, z_.workers > 0 ? z_.workers : gpu.multiProcessorCount / z_.ranks_per_gpu);
    const std::int64_t local = z_.experts / z_.ranks, h = z_.hidden, i = z_.intermediate;
    all_.hidden = h;
    all_.intermediate = i;
    all_.local = local;
    std::vector<moe::RankWeights> weights;
    std::vector<int> gpus;
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      moe::RankWeights w;
      const float about1 = 2.0f / std::sqrt(static_cast<float>(h));
      const float about2 = 2.0f / std::sqrt(static_cast<float>(i));
      if (z_.format == WeightFormat::kBf16) {
        w.w1 = values(local * 2 * i * h, seed_ + 10 * r, about1);
        w.w2 = values(local * h * i, seed_ + 10 * r + 1, about2);
      } else {
        w.w1 = codes(local * 2 * i * h, seed_ + 10 * r);
        w.w2 = codes(local * h * i, seed_ + 10 * r + 1);
        w.w1_scales = scales(local * (2 * i / 128) * (h / 128), seed_ + 10 * r + 2, about1 / 60);
        w.w2_scales = scales(local * (h / 128) * (i / 128), seed_ + 10 * r + 3, about2 / 60);
      }
      weights.push_back(w);
      all_.of[r] = w;
      gpus.push_back(gpu_of(r));
      x_.push_back(array<std::uint16_t>(z_.capacity * h));
      addend_.push_back(array<std::uint16_t>(z_.capacity * h));
      out_.push_back(array<std::uint16_t>(z_.capacity * h));
      first_out_.push_back(array<std::uint16_t>(z_.capacity * h));
      experts_.push_back(array<std::int32_t>(z_.capacity * z_.topk));
      weights_.push_back(array<float>(z_.capacity * z_.topk));
      fill_bf16<<<512, 256>>>(x_[r], z_.capacity * h, seed_ + 10 * r + 4);
      fill_bf16<<<512, 256>>>(addend_[r], z_.capacity * h, seed_ + 10 * r + 5);
      cudaStream_t stream;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      streams_.push_back(stream);
      check(cudaDeviceSynchronize(), "fill");
    }
    moe::Limits limits;
    limits.first = std::max<std::chrono::milliseconds>(std::chrono::seconds(5), z_.wait);
    limits.later = z_.wait;
    limits.in_block = z_.in_block;
    layer_ = std::make_unique<moe::Layer>(
        must(moe::Layer::create(std::vector<layout::MoeConfig>(z_.ranks, config_), gpus, weights,
                                limits),
             "create"));
  }
  ~Bench() {
    layer_.reset();
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      check(cudaStreamDestroy(streams_[r]), "stream");
    }
    for (auto& [gpu, p] : arrays_) {
      check(cudaSetDevice(gpu), "device");
      check(cudaFree(p), "free");
    }
  }

  int gpu_of(int rank) const { return rank / z_.ranks_per_gpu; }
  void use(int rank) const { check(cudaSetDevice(gpu_of(rank)), "device"); }

  moe::Layer& layer() { return *layer_; }
  const std::vector<cudaStream_t>& streams() const { return streams_; }
  const layout::MoeConfig& config() const { return config_; }
  /// Tokens of each rank, and the fullest expert's.
  std::string described() const {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(z_.experts), 0);
    std::string out = "tokens";
    for (std::size_t r = 0; r < tokens_.size(); ++r) {
      out += " " + std::to_string(tokens_[r]);
      for (const std::int32_t e : host_experts_[r])
        if (e >= 0 && e < z_.experts) ++counts[static_cast<std::size_t>(e)];
    }
    return out + ", most " + std::to_string(*std::max_element(counts.begin(), counts.end()));
  }

  /// Experts of every token; `choose(rank, token, slot list)` fills k ids.
  template <class Choose>
  void route(const std::vector<std::int64_t>& tokens, Choose&& choose) {
    tokens_ = tokens;
    host_experts_.assign(z_.ranks, {});
    std::mt19937_64 random(seed_ + 77);
    for (int r = 0; r < z_.ranks; ++r) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens[r] * z_.topk));
      std::vector<float> weights(ids.size());
      for (std::int64_t t = 0; t < tokens[r]; ++t) choose(r, t, ids.data() + t * z_.topk, random);
      for (float& w : weights) w = 0.1f + static_cast<float>(random() % 1000) / 1000.0f;
      use(r);
      check(cudaMemcpy(experts_[r], ids.data(), ids.size() * 4, cudaMemcpyHostToDevice), "ids");
      check(cudaMemcpy(weights_[r], weights.data(), weights.size() * 4, cudaMemcpyHostToDevice),
            "weights");
      host_experts_[r] = std::move(ids);
    }
  }
  void balanced(const std::vector<std::int64_t>& tokens, double none = 0) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(z_.experts));
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
    route(tokens, [&](int, std::int64_t, std::int32_t* ids, std::mt19937_64& random) {
      for (std::int64_t s = 0; s < z_.topk; ++s) {
        std::swap(all[s], all[s + random() % (all.size() - s)]);
        ids[s] = static_cast<double>(random() % 10000) < none * 10000 ? -1 : all[s];
      }
    });
  }

  std::vector<moe::RankInput> inputs(bool addend = false) const {
    std::vector<moe::RankInput> in;
    for (int r = 0; r < z_.ranks; ++r)
      in.push_back(
          {tokens_[r], x_[r], experts_[r], weights_[r], addend ? addend_[r] : nullptr, out_[r]});
    return in;
  }

  Result<bool> try_run(bool addend = false) {
    forget();
    if (auto done = layer_->launch(inputs(addend), streams_); !done) return done;
    return layer_->finish(streams_);
  }
  /// NaN in the output and in every buffer.
  void forget() {
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      check(cudaMemset(out_[r], 0xff, z_.capacity * z_.hidden * 2), "poison");
      check(cudaDeviceSynchronize(), "poison");
    }
    must(layer_->poison(), "poison");
  }
  void run(bool addend = false) { must(try_run(addend), z_.name.c_str()); }

  void keep() {
    for (int r = 0; r < z_.ranks; ++r)
      check(cudaMemcpy(first_out_[r], out_[r], tokens_[r] * z_.hidden * 2, cudaMemcpyDefault),
            "keep");
    check(cudaDeviceSynchronize(), "keep");
  }
  void expect_same(const std::string& what) {
    const double different = words_that_differ();
    expect(different == 0, "%.0f words differ", z_.name + " same bits, " + what, different);
  }
  double words_that_differ() {
    double different = 0;
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      auto* count = scratch<unsigned long long>(r, 1);
      check(cudaMemset(count, 0, 8), "memset");
      count_different<<<256, 256>>>(reinterpret_cast<std::uint32_t*>(out_[r]),
                                    reinterpret_cast<std::uint32_t*>(first_out_[r]),
                                    tokens_[r] * z_.hidden / 2, count);
      unsigned long long host = 0;
      check(cudaMemcpy(&host, count, 8, cudaMemcpyDeviceToHost), "copy");
      scratch_used_ = 0;
      different += static_cast<double>(host);
    }
    return different;
  }
  /// Other tokens in the same memory.
  void refill(std::uint64_t seed) {
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      fill_bf16<<<512, 256>>>(x_[r], z_.capacity * z_.hidden, seed + 10 * r);
      check(cudaDeviceSynchronize(), "fill");
    }
  }

  /// Against the reference, on every `step`-th token of every rank. The Tensor Cores sum products
  /// of fp8 with about 14 bits: 1.3e-4 of a step. Where that tips a value over the middle between
  /// two codes of e4m3, it moves by 6 to 12 %.
  void compare(std::int64_t step, bool addend = false) {
    double end[3] = {0, 0, 0}, own[3] = {0, 0, 0}, middle_error[2] = {0, 0};
    double linear1[2] = {0, 0};
    const std::vector<std::vector<std::int64_t>> place_of = places();
    for (int r = 0; r < z_.ranks; ++r) {
      std::vector<std::int64_t> pairs, places;
      std::vector<std::int32_t> owners;
      for (std::int64_t t = 0; t < tokens_[r]; t += step)
        for (std::int64_t s = 0; s < z_.topk; ++s) {
          const std::int64_t pair = t * z_.topk + s;
          pairs.push_back(pair);
          places.push_back(place_of[r][static_cast<std::size_t>(pair)]);
          const std::int32_t e = host_experts_[r][static_cast<std::size_t>(pair)];
          owners.push_back(e < 0 ? -1 : static_cast<std::int32_t>(e / all_.local));
        }
      if (pairs.empty()) continue;
      use(r);
      const auto count = static_cast<std::int64_t>(pairs.size());
      const auto grid = static_cast<unsigned>(count);
      auto* d_pairs = upload(r, pairs);
      auto* d_places = upload(r, places);
      auto* d_owners = upload(r, owners);
      std::vector<void*> bases;
      for (int i = 0; i < z_.ranks; ++i) bases.push_back(layer_->workspace(i));
      auto* d_bases = upload(r, bases);
      auto* wanted = scratch<float>(r, count * z_.intermediate);
      auto* got = scratch<float>(r, count * z_.intermediate);
      auto* slots = scratch<float>(r, count * z_.hidden);
      const std::int64_t groups = count * (z_.intermediate / 128);
      auto* largest = scratch<float>(r, groups);
      auto* got_largest = scratch<float>(r, groups);
      auto* errors = scratch<double>(r, 10);
      check(cudaMemset(errors, 0, 80), "memset");
      const auto shared = static_cast<std::size_t>(std::max(z_.hidden, z_.intermediate)) * 4;
      const int topk = static_cast<int>(z_.topk);
      const std::uint16_t* const add = addend ? addend_[r] : nullptr;
      reference_linear1<<<grid, 256, shared>>>(all_, x_[r], experts_[r], weights_[r], d_pairs, topk,
                                               config_.activation.clamp, wanted, largest);
      own_middle<<<grid, 256>>>(layer_->layout(), d_places, d_bases, d_owners, got, got_largest);
      if (config_.format != WeightFormat::kBf16)
        compare_values<<<256, 256>>>(got_largest, largest, groups, errors + 8);
      compare_values<<<256, 256>>>(got, wanted, count * z_.intermediate, errors + 3);
      const auto token_grid = static_cast<unsigned>(count / z_.topk);
      reference_linear2<<<grid, 256, shared>>>(all_, experts_[r], d_pairs, wanted, slots);
      compare_rows<<<token_grid, 256>>>(out_[r], add, d_pairs, topk, slots, z_.hidden, errors);
      reference_linear2<<<grid, 256, shared>>>(all_, experts_[r], d_pairs, got, slots);
      compare_rows<<<token_grid, 256>>>(out_[r], add, d_pairs, topk, slots, z_.hidden, errors + 5);
      double host[10];
      check(cudaMemcpy(host, errors, 80, cudaMemcpyDeviceToHost), "errors");
      linear1[0] += host[8], linear1[1] += host[9];
      end[0] += host[0], end[1] += host[1], end[2] = std::max(end[2], host[2]);
      middle_error[0] += host[3], middle_error[1] += host[4];
      own[0] += host[5], own[1] += host[6], own[2] = std::max(own[2], host[7]);
      scratch_used_ = 0;
    }
    const auto relative = [](const double* e) {
      return e[1] > 0 ? std::sqrt(e[0] / e[1]) : std::sqrt(e[0]);
    };
    const bool bf16 = config_.format == WeightFormat::kBf16;
    if (!bf16)
      expect(relative(linear1) < 1e-3, "%.2e", z_.name + " Linear-1, largest of each group",
             relative(linear1));
    expect(relative(middle_error) < (bf16 ? 1e-3 : 1.5e-2), "%.2e", z_.name + " intermediate",
           relative(middle_error));
    expect(relative(own) < 3e-3, "%.2e", z_.name + " output, own intermediate", relative(own));
    expect(relative(end) < (bf16 ? 3e-3 : 1.5e-2), "%.2e", z_.name + " output, end to end",
           relative(end));
    std::printf("       worst row: %.2e own, %.2e end to end\n", own[2], end[2]);
  }

  /// Where the time of a launch goes, of the second one in a row.
  void print_marks(const MoeSchedule& schedule, MoeDispatch dispatch) {
    must(layer_->set_schedule(schedule, dispatch), "schedule");
    const int blocks = config_.workers;
    auto in = inputs();
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      in[r].marks = device_array<std::uint64_t>(blocks * moe::kMarks);
      check(cudaMemset(in[r].marks, 0, static_cast<std::size_t>(blocks * moe::kMarks) * 8),
            "marks");
    }
    for (int i = 0; i < 3; ++i) must(layer_->launch(in, streams_), "launch");
    must(layer_->finish(streams_), "finish");
    for (int r = 0; r < z_.ranks; ++r) {
      std::vector<std::uint64_t> marks(static_cast<std::size_t>(blocks * moe::kMarks));
      check(cudaMemcpy(marks.data(), in[r].marks, marks.size() * 8, cudaMemcpyDefault), "marks");
      check(cudaFree(in[r].marks), "free");
      std::uint64_t begin = ~std::uint64_t{0};
      for (int w = 0; w < blocks; ++w) begin = std::min(begin, marks[w * moe::kMarks]);
      std::printf("MARKS  rank %d:", r);
      for (int m = 0; m < moe::kMarks; ++m) {
        std::vector<double> us;
        for (int w = 0; w < blocks; ++w)
          us.push_back(
              static_cast<double>(marks[w * moe::kMarks + m] -
                                  (m < static_cast<int>(moe::kFirstDuration) ? begin : 0)) /
              1000);
        std::sort(us.begin(), us.end());
        std::printf(" %s %.0f/%.0f/%.0f", moe::kMarkNames[m], us.front(), us[us.size() / 2],
                    us.back());
      }
      std::printf("\n");
    }
  }

  double median_us(const MoeSchedule& schedule, MoeDispatch dispatch, int repeats) {
    must(layer_->set_schedule(schedule, dispatch), "schedule");
    std::vector<std::vector<cudaEvent_t>> events(z_.ranks);
    for (int r = 0; r < z_.ranks; ++r) {
      use(r);
      for (int i = 0; i < repeats + 3; ++i) {
        cudaEvent_t e;
        check(cudaEventCreate(&e), "event");
        events[r].push_back(e);
      }
    }
    const auto in = inputs();
    for (int i = 0; i < repeats + 3; ++i) {
      for (int r = 0; r < z_.ranks; ++r) {
        use(r);
        check(cudaEventRecord(events[r][i], streams_[r]), "record");
      }
      if (i < repeats + 2) must(layer_->launch(in, streams_), "launch");
    }
    must(layer_->finish(streams_), "finish");
    std::vector<float> times;
    for (int i = 2; i < repeats + 2; ++i) {
      float most = 0;
      for (int r = 0; r < z_.ranks; ++r) {
        float ms = 0;
        check(cudaEventElapsedTime(&ms, events[r][i], events[r][i + 1]), "elapsed");
        most = std::max(most, ms);
      }
      times.push_back(most * 1000);
    }
    for (auto& of_rank : events)
      for (cudaEvent_t e : of_rank) check(cudaEventDestroy(e), "event");
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  }

 private:
  template <class T>
  T* array(std::int64_t count) {
    int gpu = 0;
    check(cudaGetDevice(&gpu), "device");
    T* const p = device_array<T>(count);
    arrays_.emplace_back(gpu, p);
    return p;
  }
  std::uint8_t* codes(std::int64_t count, std::uint64_t seed) {
    auto* const p = array<std::uint8_t>(count);
    fill_codes<<<2048, 256>>>(p, count, seed, 60.0f);
    return p;
  }
  std::uint16_t* values(std::int64_t count, std::uint64_t seed, float spread) {
    auto* const p = array<std::uint16_t>(count);
    fill_bf16<<<2048, 256>>>(p, count, seed, spread);
    return p;
  }
  /// One in sixteen blocks has scale zero (pruned weights).
  float* scales(std::int64_t count, std::uint64_t seed, float about) {
    auto* const p = array<float>(count);
    fill_scales<<<512, 256>>>(p, count, seed, 0.5f * about, 1.5f * about);
    check(cudaMemset(p, 0, 4), "zero scale");
    return p;
  }
  /// Memory of GPU `r` until scratch_used_ is set back. Allocated once: with peers that may reach
  /// it, an allocation takes milliseconds.
  template <class T>
  T* scratch(int r, std::int64_t count) {
    constexpr std::int64_t kBytes = std::int64_t{1} << 28;
    scratch_.resize(static_cast<std::size_t>(z_.ranks));
    if (scratch_[r] == nullptr) scratch_[r] = array<std::uint8_t>(kBytes);
    T* const p = reinterpret_cast<T*>(scratch_[r] + scratch_used_);
    scratch_used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
    if (scratch_used_ > kBytes) check(cudaErrorMemoryAllocation, "scratch");
    return p;
  }
  template <class T>
  T* upload(int r, const std::vector<T>& values) {
    T* const p = scratch<T>(r, static_cast<std::int64_t>(values.size()));
    check(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "upload");
    return p;
  }

  /// Where each pair stands in the pool of its expert's rank, from what the kernel wrote there.
  std::vector<std::vector<std::int64_t>> places() const {
    const layout::MoeLayout& layout = layer_->layout();
    std::vector<std::vector<std::int64_t>> out(z_.ranks);
    for (int r = 0; r < z_.ranks; ++r) out[r].assign(host_experts_[r].size(), -1);
    for (int r = 0; r < z_.ranks; ++r) {
      std::vector<std::int64_t> counts(static_cast<std::size_t>(all_.local), 0);
      for (const auto& ids : host_experts_)
        for (const std::int32_t e : ids)
          if (e >= 0 && e / all_.local == r) ++counts[e % all_.local];
      std::int64_t rows = 0;
      for (const std::int64_t c : counts) rows += (c + 127) / 128;
      if (rows == 0) continue;
      std::vector<layout::RowOrigin> origins(static_cast<std::size_t>(rows * 128));
      check(cudaMemcpy(origins.data(), layout.origin(layer_->workspace(r), 0),
                       origins.size() * sizeof(layout::RowOrigin), cudaMemcpyDefault),
            "origins");
      std::int64_t row = 0;
      for (const std::int64_t c : counts) {
        for (std::int64_t i = 0; i < c; ++i) {
          const auto& o = origins[static_cast<std::size_t>(row * 128 + i)];
          if (o.source < 0 || o.source >= z_.ranks || o.pair >= out[o.source].size()) {
            expect(false, "%.0f", z_.name + " origin that cannot be, place",
                   static_cast<double>(row * 128 + i));
            return out;
          }
          out[o.source][o.pair] = row * 128 + i;
        }
        row += (c + 127) / 128;
      }
    }
    return out;
  }

  Sizes z_;
  std::uint64_t seed_;
  layout::MoeConfig config_;
  AllWeights all_{};
  std::vector<std::pair<int, void*>> arrays_;
  std::vector<std::uint16_t*> x_, addend_, out_, first_out_;
  std::vector<std::int32_t*> experts_;
  std::vector<float*> weights_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::vector<std::int32_t>> host_experts_;
  std::vector<std::uint8_t*> scratch_;
  std::int64_t scratch_used_ = 0;
  std::unique_ptr<moe::Layer> layer_;
};

}  // namespace xstage::moe_test
