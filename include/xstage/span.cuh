// Spans of store bursts inside any kernel: how long each burst took to issue, and the gap before
// the next one. Three lines in the kernel:
//
//   xstage::Spans spans(buffer);   // at its begin, by every thread
//   spans.begin();                 // before the first store of a burst
//   spans.end();                   // right after the last one
//
// One thread of the block records (thread 0 unless told otherwise); it must be one that stores. A
// record is written to memory when the next burst begins, not when its own ends: behind the burst
// it would wait for the stores that are still queued inside the SM, and so would the kernel. What
// it costs: four registers, two clock reads a burst and one 8-byte store a burst. A buffer without
// memory records nothing.
//
//   xstage::SpanCollector collector(blocks, 256);      // host: up to 256 bursts a block
//   kernel<<<blocks, …>>>(…, collector.buffer());
//   std::string json = collector.json({.kernel = "mine", .bytes = 32768});
//
// The JSON is what `xstage plan --from-spans FILE` audits. Times are counted by the SM's clock and
// set in relation to %globaltimer (32 ns steps) at the block's begin and end.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace xstage {

/// Where a kernel's spans go. Passed to the kernel by value.
struct SpanBuffer {
  std::uint64_t* words = nullptr;  ///< kSpanHeader + capacity words a block
  std::uint32_t capacity = 0;      ///< bursts kept for each block; further ones are counted
};

/// Words before a block's bursts: SM, bursts seen, cycle and ns at begin, cycle and ns at end.
inline constexpr std::uint32_t kSpanHeader = 6;

/// Records the bursts of one block. Writes its header when it goes out of scope.
class Spans {
 public:
  __device__ explicit Spans(const SpanBuffer& buffer, bool recording = threadIdx.x == 0) {
    if (!recording || buffer.words == nullptr) return;
    const std::uint64_t block =
        (static_cast<std::uint64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    header_ = buffer.words + block * (kSpanHeader + buffer.capacity);
    capacity_ = buffer.capacity;
    const std::uint64_t cycle = clock_now();
    header_[2] = cycle;
    header_[3] = timer_now();
    origin_ = static_cast<std::uint32_t>(cycle);
  }

  Spans(const Spans&) = delete;
  Spans& operator=(const Spans&) = delete;

  __device__ void begin() {
    if (header_ == nullptr) return;
    write_pending();
    begin_ = static_cast<std::uint32_t>(clock_now()) - origin_;
  }

  __device__ void end() {
    if (header_ == nullptr) return;
    end_ = static_cast<std::uint32_t>(clock_now()) - origin_;
    ++seen_;
  }

  __device__ ~Spans() {
    if (header_ == nullptr) return;
    write_pending();
    std::uint32_t sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    header_[0] = sm;
    header_[1] = seen_;
    header_[4] = clock_now();
    header_[5] = timer_now();
  }

 private:
  static __device__ std::uint64_t clock_now() {
    std::uint64_t t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
  }
  static __device__ std::uint64_t timer_now() {
    std::uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
  }

  /// The burst before, as two 32-bit cycle counts since the block's begin (2 s at 2 GHz).
  __device__ void write_pending() {
    if (seen_ == 0 || seen_ > capacity_) return;
    header_[kSpanHeader + seen_ - 1] =
        static_cast<std::uint64_t>(end_) << 32 | static_cast<std::uint64_t>(begin_);
  }

  std::uint64_t* header_ = nullptr;
  std::uint32_t capacity_ = 0, seen_ = 0, origin_ = 0, begin_ = 0, end_ = 0;
};

/// What the host knows about the kernel whose spans it collected.
struct SpanLabels {
  std::string kernel;               ///< a name for plots
  std::uint64_t bytes = 0;          ///< of one burst of one block
  std::string mechanism = "st_v4";  ///< or st_v1, st_v2, tma_bulk
  int threads = 0;                  ///< that store
  bool both_ways = false;           ///< the peer stores too at the same time
  int gpu = 0;
};

/// Owns the device memory of a kernel's spans, and turns them into JSON.
class SpanCollector {
 public:
  SpanCollector(std::uint32_t blocks, std::uint32_t capacity) : blocks_(blocks) {
    buffer_.capacity = capacity;
    const std::size_t bytes = words() * sizeof(std::uint64_t);
    check(cudaMalloc(&buffer_.words, bytes));
    check(cudaMemset(buffer_.words, 0, bytes));
  }
  ~SpanCollector() { cudaFree(buffer_.words); }
  SpanCollector(const SpanCollector&) = delete;
  SpanCollector& operator=(const SpanCollector&) = delete;

  SpanBuffer buffer() const { return buffer_; }

  /// Spans of the last launch (waits for the device), as xstage.spans/1.
  std::string json(const SpanLabels& labels) const {
    const std::vector<std::uint64_t> host = fetch();
    std::string blocks;
    const char* separator = "";
    double clock_sum = 0;
    std::uint32_t clocks = 0;
    std::uint64_t first_ns = ~0ull, dropped = 0;
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      const std::uint64_t* h = &host[static_cast<std::size_t>(b) * stride()];
      if (h[1] == 0) continue;
      if (h[5] > h[3] + 1000) {
        clock_sum += static_cast<double>(h[4] - h[2]) / static_cast<double>(h[5] - h[3]);
        ++clocks;
      }
      if (h[3] < first_ns) first_ns = h[3];
    }
    const double ghz = clocks > 0 ? clock_sum / clocks : 1.0;
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      const std::uint64_t* h = &host[static_cast<std::size_t>(b) * stride()];
      if (h[1] == 0) continue;
      const std::uint64_t kept = h[1] < buffer_.capacity ? h[1] : buffer_.capacity;
      dropped += h[1] - kept;
      std::string start, issue;
      const char* comma = "";
      const double at = static_cast<double>(h[3] - first_ns) * 1e-3;
      for (std::uint64_t i = 0; i < kept; ++i) {
        const std::uint64_t word = h[kSpanHeader + i];
        const auto begin = static_cast<std::uint32_t>(word);
        const auto end = static_cast<std::uint32_t>(word >> 32);
        start += comma;
        start += number(at + begin / (ghz * 1e3));
        issue += comma;
        issue += number((end - begin) / (ghz * 1e3));
        comma = ",";
      }
      blocks += separator;
      blocks += "\n  {\"block\": " + std::to_string(b);
      blocks += ", \"sm\": " + std::to_string(h[0]);
      blocks += ", \"start_us\": [" + start;
      blocks += "], \"issue_us\": [" + issue;
      blocks += "]}";
      separator = ",";
    }
    std::string out = "{\"format\": \"xstage.spans/1\", \"kernel\": \"";
    out += escaped(labels.kernel);
    out += "\", \"gpu\": " + std::to_string(labels.gpu);
    out += ", \"sm_clock_ghz\": " + (clocks > 0 ? number(ghz) : std::string("null"));
    out += ", \"bytes\": " + std::to_string(labels.bytes);
    out += ", \"mechanism\": \"" + escaped(labels.mechanism);
    out += "\", \"threads\": " + std::to_string(labels.threads);
    out += std::string(", \"both_ways\": ") + (labels.both_ways ? "true" : "false");
    out += ", \"dropped\": " + std::to_string(dropped);
    out += ", \"blocks\": [" + blocks;
    out += "\n]}\n";
    return out;
  }

  /// The same as a Chrome trace: one track an SM; Perfetto opens it.
  std::string trace(const SpanLabels& labels) const {
    const std::vector<std::uint64_t> host = fetch();
    std::string events;
    const char* separator = "";
    std::uint64_t first_ns = ~0ull;
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      const std::uint64_t* h = &host[static_cast<std::size_t>(b) * stride()];
      if (h[1] != 0 && h[3] < first_ns) first_ns = h[3];
    }
    for (std::uint32_t b = 0; b < blocks_; ++b) {
      const std::uint64_t* h = &host[static_cast<std::size_t>(b) * stride()];
      if (h[1] == 0 || h[5] <= h[3]) continue;
      const double ghz = static_cast<double>(h[4] - h[2]) / static_cast<double>(h[5] - h[3]);
      const double at = static_cast<double>(h[3] - first_ns) * 1e-3;
      const std::uint64_t kept = h[1] < buffer_.capacity ? h[1] : buffer_.capacity;
      for (std::uint64_t i = 0; i < kept; ++i) {
        const std::uint64_t word = h[kSpanHeader + i];
        const auto begin = static_cast<std::uint32_t>(word);
        const auto end = static_cast<std::uint32_t>(word >> 32);
        events += separator;
        events +=
            "\n{\"name\": \"store burst\", \"ph\": \"X\", \"pid\": " + std::to_string(labels.gpu);
        events += ", \"tid\": " + std::to_string(h[0]);
        events += ", \"ts\": " + number(at + begin / (ghz * 1e3));
        events += ", \"dur\": " + number((end - begin) / (ghz * 1e3));
        events += "}";
        separator = ",";
      }
    }
    return "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [" + events + "\n]}\n";
  }

 private:
  std::size_t stride() const { return kSpanHeader + buffer_.capacity; }
  std::size_t words() const { return static_cast<std::size_t>(blocks_) * stride(); }

  std::vector<std::uint64_t> fetch() const {
    std::vector<std::uint64_t> host(words());
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(host.data(), buffer_.words, host.size() * sizeof(std::uint64_t),
                     cudaMemcpyDeviceToHost));
    return host;
  }

  static void check(cudaError_t code) {
    if (code != cudaSuccess)
      throw std::runtime_error(std::string("xstage spans: ") + cudaGetErrorString(code));
  }

  static std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", value);
    return text;
  }

  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out;
  }

  SpanBuffer buffer_;
  std::uint32_t blocks_ = 0;
};

}  // namespace xstage
