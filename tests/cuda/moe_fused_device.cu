// The fused MoE layer on one or two GPUs: right against a plain fp32 layer with the same
// quantisation points, the same bits under every schedule, errors that end.
//   moe_fused_device                                  checks
//   moe_fused_device --time LAYER|all [FILE [COMMIT]] times, and writes them as JSON
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/moe/layer.hpp"
#include "moe_reference.cuh"

namespace xstage::moe_test {
namespace {

using layout::MoeDispatch;
using schedule::MoeSchedule;

struct Sizes {
  std::string name;
  int ranks;
  std::int64_t hidden, intermediate, experts, topk, capacity;
};

bool g_ok = true;
void expect(bool ok, const char* format, const std::string& name, double value) {
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
    cudaDeviceProp gpu{};
    check(cudaGetDeviceProperties(&gpu, 0), "properties");
    config_.ranks = z_.ranks;
    config_.topk = static_cast<std::int32_t>(z_.topk);
    config_.experts = z_.experts;
    config_.hidden = z_.hidden;
    config_.intermediate = z_.intermediate;
    config_.capacity = z_.capacity;
    config_.activation.clamp = clamp;
    config_.schedule = MoeSchedule::interleaved(8);
    config_ = moe::with_tiles(config_, gpu.multiProcessorCount);
    const std::int64_t local = z_.experts / z_.ranks, h = z_.hidden, i = z_.intermediate;
    all_.hidden = h;
    all_.intermediate = i;
    all_.local = local;
    std::vector<moe::RankWeights> weights;
    std::vector<int> gpus;
    for (int r = 0; r < z_.ranks; ++r) {
      check(cudaSetDevice(r), "device");
      moe::RankWeights w;
      w.w1 = codes(local * 2 * i * h, seed_ + 10 * r);
      w.w2 = codes(local * h * i, seed_ + 10 * r + 1);
      w.w1_scales = scales(local * (2 * i / 128) * (h / 128), seed_ + 10 * r + 2,
                           2.0f / std::sqrt(static_cast<float>(h)) / 60);
      w.w2_scales = scales(local * (h / 128) * (i / 128), seed_ + 10 * r + 3,
                           2.0f / std::sqrt(static_cast<float>(i)) / 60);
      weights.push_back(w);
      all_.of[r] = w;
      gpus.push_back(r);
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
    limits.first = std::chrono::seconds(5);
    limits.later = std::chrono::milliseconds(1500);
    layer_ = std::make_unique<moe::Layer>(
        must(moe::Layer::create(std::vector<layout::MoeConfig>(z_.ranks, config_), gpus, weights,
                                limits),
             "create"));
  }
  ~Bench() {
    layer_.reset();
    for (auto& [gpu, p] : arrays_) {
      check(cudaSetDevice(gpu), "device");
      check(cudaFree(p), "free");
    }
  }

  moe::Layer& layer() { return *layer_; }
  const std::vector<cudaStream_t>& streams() const { return streams_; }
  const layout::MoeConfig& config() const { return config_; }

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
      check(cudaSetDevice(r), "device");
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
    for (int r = 0; r < z_.ranks; ++r) {
      check(cudaSetDevice(r), "device");
      check(cudaMemset(out_[r], 0xff, z_.capacity * z_.hidden * 2), "poison");
      check(cudaDeviceSynchronize(), "poison");
    }
    must(layer_->poison(), "poison");
    if (auto done = layer_->launch(inputs(addend), streams_); !done) return done;
    return layer_->finish(streams_);
  }
  void run(bool addend = false) { must(try_run(addend), z_.name.c_str()); }

  void keep() {
    for (int r = 0; r < z_.ranks; ++r)
      check(cudaMemcpy(first_out_[r], out_[r], tokens_[r] * z_.hidden * 2, cudaMemcpyDefault),
            "keep");
    check(cudaDeviceSynchronize(), "keep");
  }
  void expect_same(const std::string& what) {
    double different = 0;
    for (int r = 0; r < z_.ranks; ++r) {
      check(cudaSetDevice(r), "device");
      auto* count = device_array<unsigned long long>(1);
      check(cudaMemset(count, 0, 8), "memset");
      count_different<<<256, 256>>>(reinterpret_cast<std::uint32_t*>(out_[r]),
                                    reinterpret_cast<std::uint32_t*>(first_out_[r]),
                                    tokens_[r] * z_.hidden / 2, count);
      unsigned long long host = 0;
      check(cudaMemcpy(&host, count, 8, cudaMemcpyDeviceToHost), "copy");
      check(cudaFree(count), "free");
      different += static_cast<double>(host);
    }
    expect(different == 0, "%.0f words differ", z_.name + " same bits, " + what, different);
  }

  /// Against the reference, on every `step`-th token of every rank.
  void compare(std::int64_t step, bool addend = false) {
    double end[3] = {0, 0, 0}, own[3] = {0, 0, 0}, middle_error[2] = {0, 0};
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
      check(cudaSetDevice(r), "device");
      const auto count = static_cast<std::int64_t>(pairs.size());
      const auto grid = static_cast<unsigned>(count);
      auto* d_pairs = upload(pairs);
      auto* d_places = upload(places);
      auto* d_owners = upload(owners);
      std::vector<void*> bases;
      for (int i = 0; i < z_.ranks; ++i) bases.push_back(layer_->workspace(i));
      auto* d_bases = upload(bases);
      auto* wanted = device_array<float>(count * z_.intermediate);
      auto* got = device_array<float>(count * z_.intermediate);
      auto* slots = device_array<float>(count * z_.hidden);
      auto* errors = device_array<double>(8);
      check(cudaMemset(errors, 0, 64), "memset");
      const auto shared = static_cast<std::size_t>(std::max(z_.hidden, z_.intermediate)) * 4;
      const int topk = static_cast<int>(z_.topk);
      const std::uint16_t* const add = addend ? addend_[r] : nullptr;
      reference_linear1<<<grid, 256, shared>>>(all_, x_[r], experts_[r], weights_[r], d_pairs, topk,
                                               config_.activation.clamp, wanted);
      own_middle<<<grid, 256>>>(layer_->layout(), d_places, d_bases, d_owners, got);
      compare_values<<<256, 256>>>(got, wanted, count * z_.intermediate, errors + 3);
      const auto token_grid = static_cast<unsigned>(count / z_.topk);
      reference_linear2<<<grid, 256, shared>>>(all_, experts_[r], d_pairs, wanted, slots);
      compare_rows<<<token_grid, 256>>>(out_[r], add, d_pairs, topk, slots, z_.hidden, errors);
      reference_linear2<<<grid, 256, shared>>>(all_, experts_[r], d_pairs, got, slots);
      compare_rows<<<token_grid, 256>>>(out_[r], add, d_pairs, topk, slots, z_.hidden, errors + 5);
      double host[8];
      check(cudaMemcpy(host, errors, 64, cudaMemcpyDeviceToHost), "errors");
      end[0] += host[0], end[1] += host[1], end[2] = std::max(end[2], host[2]);
      middle_error[0] += host[3], middle_error[1] += host[4];
      own[0] += host[5], own[1] += host[6], own[2] = std::max(own[2], host[7]);
      for (void* p : std::initializer_list<void*>{d_pairs, d_places, d_owners, d_bases, wanted, got,
                                                  slots, errors})
        check(cudaFree(p), "free");
    }
    const auto relative = [](const double* e) {
      return e[1] > 0 ? std::sqrt(e[0] / e[1]) : std::sqrt(e[0]);
    };
    expect(relative(middle_error) < 1.5e-2, "%.2e", z_.name + " intermediate",
           relative(middle_error));
    expect(relative(own) < 3e-3, "%.2e", z_.name + " output, own intermediate", relative(own));
    expect(relative(end) < 1.5e-2, "%.2e", z_.name + " output, end to end", relative(end));
    std::printf("       worst row: %.2e own, %.2e end to end\n", own[2], end[2]);
  }

  /// Where the time of a launch goes, of the second one in a row.
  void print_marks(const MoeSchedule& schedule, MoeDispatch dispatch) {
    must(layer_->set_schedule(schedule, dispatch), "schedule");
    const int blocks = config_.workers;
    auto in = inputs();
    for (int r = 0; r < z_.ranks; ++r) {
      check(cudaSetDevice(r), "device");
      in[r].marks = device_array<std::uint64_t>(blocks * moe::kMarks);
    }
    for (int i = 0; i < 3; ++i) must(layer_->launch(in, streams_), "launch");
    must(layer_->finish(streams_), "finish");
    constexpr const char* kNames[] = {
        "begin",      "staged",   "routed", "dispatched",        "issued",
        "tiles done", "combined", "end",    "waited for tokens", "waited for Linear-1"};
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
          us.push_back(static_cast<double>(marks[w * moe::kMarks + m] - (m < 8 ? begin : 0)) /
                       1000);
        std::sort(us.begin(), us.end());
        std::printf(" %s %.0f/%.0f/%.0f", kNames[m], us.front(), us[us.size() / 2], us.back());
      }
      std::printf("\n");
    }
  }

  double median_us(const MoeSchedule& schedule, MoeDispatch dispatch, int repeats) {
    must(layer_->set_schedule(schedule, dispatch), "schedule");
    std::vector<std::vector<cudaEvent_t>> events(z_.ranks);
    for (int r = 0; r < z_.ranks; ++r) {
      check(cudaSetDevice(r), "device");
      for (int i = 0; i < repeats + 3; ++i) {
        cudaEvent_t e;
        check(cudaEventCreate(&e), "event");
        events[r].push_back(e);
      }
    }
    const auto in = inputs();
    for (int i = 0; i < repeats + 3; ++i) {
      for (int r = 0; r < z_.ranks; ++r) {
        check(cudaSetDevice(r), "device");
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
  /// One in sixteen blocks has scale zero (pruned weights).
  float* scales(std::int64_t count, std::uint64_t seed, float about) {
    auto* const p = array<float>(count);
    fill_scales<<<512, 256>>>(p, count, seed, 0.5f * about, 1.5f * about);
    check(cudaMemset(p, 0, 4), "zero scale");
    return p;
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* const p = device_array<T>(static_cast<std::int64_t>(values.size()));
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
  std::unique_ptr<moe::Layer> layer_;
};

void schedules(Bench& b) {
  b.keep();
  for (const MoeDispatch dispatch : {MoeDispatch::kPerRank, MoeDispatch::kPerSlot})
    for (const MoeSchedule& s :
         {MoeSchedule::interleaved(1), MoeSchedule::interleaved(4), MoeSchedule::interleaved(64),
          MoeSchedule::wave(1), MoeSchedule::wave(3)}) {
      must(b.layer().set_schedule(s, dispatch), "schedule");
      b.run();
      b.expect_same((s.kind == schedule::MoeScheduleKind::kWave
                         ? "wave " + std::to_string(s.group)
                         : "lead " + std::to_string(s.lead)) +
                    (dispatch == MoeDispatch::kPerRank ? " per rank" : " per slot"));
    }
}

void small_cases(int gpus, std::uint64_t seed) {
  {
    Bench b({"one rank", 1, 512, 256, 4, 2, 100}, seed);
    b.balanced({100});
    b.run();
    b.compare(1);
    schedules(b);
  }
  {
    Bench b({"one expert in all", 1, 256, 128, 1, 1, 300}, seed + 1, 1.5f);
    b.balanced({300});
    b.run();
    b.compare(1);
  }
  if (gpus < 2) return;
  {
    Bench b({"two ranks, skipped slots", 2, 768, 384, 8, 3, 500}, seed + 2);
    b.balanced({437, 160}, 0.3);
    b.run();
    b.compare(1);
    schedules(b);
    b.run(true);
    b.compare(1, true);
    b.balanced({0, 333});
    b.run();
    b.compare(1);
    b.balanced({0, 0});
    b.run();
    b.balanced({20, 1}, 1.0);
    b.run();
    b.compare(1);
    // 1, 63, 64, 65, 127, 128, 129 tokens for an expert, each token twice the same expert.
    b.route({289, 288}, [](int r, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
      const std::int64_t ends[8] = {1, 64, 128, 193, 320, 448, 577, 577};
      const std::int64_t at = r * 289 + t;
      for (std::int32_t e = 7; e >= 0; --e)
        if (at < ends[e]) ids[0] = e;
      ids[1] = -1;
      ids[2] = ids[0];
    });
    b.run();
    b.compare(1);
    b.route({500, 500}, [](int, std::int64_t, std::int32_t* ids, std::mt19937_64&) {
      ids[0] = 6, ids[1] = 4, ids[2] = 5;
    });
    b.run();
    b.compare(3);
    b.route({40, 40}, [](int r, std::int64_t t, std::int32_t* ids, std::mt19937_64&) {
      ids[0] = r == 1 && t == 7 ? 8 : 0, ids[1] = 1, ids[2] = 5;
    });
    const auto refused = b.try_run();
    expect(!refused.ok(), "%.0f",
           refused.ok() ? "an id out of range passed" : refused.error().message(), 0);
    b.balanced({300, 200});
    b.run();
    b.compare(1);
    // A stream that is held up: the other rank's wait ends, and the next launch works.
    check(cudaSetDevice(1), "device");
    check(cudaLaunchHostFunc(
              b.streams()[1],
              [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); }, nullptr),
          "host function");
    const auto late = [&] {
      if (auto done = b.layer().launch(b.inputs(), b.streams()); !done) return done;
      return b.layer().finish(b.streams());
    }();
    expect(!late.ok(), "%.0f", late.ok() ? "a stopped stream passed" : late.error().message(), 0);
    b.balanced({300, 200});
    b.run();
    b.compare(1);
  }
  {
    Bench b({"random routings", 2, 512, 256, 16, 4, 200}, seed + 3);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 40; ++i) {
      b.balanced(
          {static_cast<std::int64_t>(random() % 201), static_cast<std::int64_t>(random() % 201)},
          0.1 * static_cast<double>(random() % 3));
      for (int j = 0; j < 10; ++j) must(b.layer().launch(b.inputs(), b.streams()), "launch");
      must(b.layer().finish(b.streams()), "finish");
      if (i % 13 == 0) b.compare(7);
    }
  }
}

constexpr struct {
  const char* name;
  std::int64_t hidden, intermediate, experts, topk;
} kLayers[] = {{"lingbot-video", 2048, 768, 128, 8}, {"qwen3.5-397b", 4096, 1024, 512, 10},
               {"hy3", 4096, 1536, 192, 8},          {"deepseek-v4-flash", 4096, 2048, 256, 6},
               {"glm-5", 6144, 2048, 256, 8},        {"deepseek-v4-pro", 7168, 3072, 384, 6}};

void times(int ranks, std::uint64_t seed, const std::string& only, Results& results) {
  for (const auto& l : kLayers) {
    if (only != "all" && only != l.name) continue;
    Bench b({l.name, ranks, l.hidden, l.intermediate, l.experts, l.topk, 8192}, seed);
    for (const std::int64_t tokens : {8192, 1024}) {
      b.balanced(std::vector<std::int64_t>(ranks, tokens));
      const auto& c = b.config();
      const std::int32_t group =
          schedule::wave_group(tokens * ranks * l.topk, l.experts,
                               static_cast<std::int32_t>(l.experts / ranks), c.tiling(), c.workers);
      b.run();
      b.compare(257);
      const auto line = [&](const char* what, const MoeSchedule& s, MoeDispatch d) {
        results.add(l.name, static_cast<long>(tokens), what, b.median_us(s, d, 9));
      };
      b.print_marks(MoeSchedule::interleaved(16), MoeDispatch::kPerRank);
      line("wave per rank", MoeSchedule::wave(group), MoeDispatch::kPerRank);
      line("wave per slot", MoeSchedule::wave(group), MoeDispatch::kPerSlot);
      line("lead 4 per rank", MoeSchedule::interleaved(4), MoeDispatch::kPerRank);
      line("lead 16 per rank", MoeSchedule::interleaved(16), MoeDispatch::kPerRank);
      line("lead 64 per rank", MoeSchedule::interleaved(64), MoeDispatch::kPerRank);
      line("lead 16 per slot", MoeSchedule::interleaved(16), MoeDispatch::kPerSlot);
    }
  }
}

}  // namespace
}  // namespace xstage::moe_test

int main(int argc, char** argv) {
  using namespace xstage::moe_test;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIP: no GPU\n");
    return 77;
  }
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu, %d GPUs\n", static_cast<unsigned long long>(seed), gpus);
  const std::string what = argc > 1 ? argv[1] : "--check";
  if (what == "--check") small_cases(gpus, seed);
  if (what == "--time") {
    Results results;
    times(std::min(gpus, 2), seed, argc > 2 ? argv[2] : "all", results);
    results.write(argc > 3 ? argv[3] : "", "moe_fused_device --time", argc > 4 ? argv[4] : "");
  }
  std::printf("%s\n", g_ok ? "PASSED" : "FAILED");
  return g_ok ? 0 : 1;
}
