// A group of ranks for tests of the fused output: a GPU each, or several on one GPU while all their
// blocks fit on it at once.
#pragma once

#include "ulysses_gpu.cuh"
#include "xstage/layout/check.hpp"

namespace xstage::ulysses::test {

/// What every rank of a layer needs; inputs of all heads are the same on every device.
class RankGroup {
 public:
  /// `bytes` of symmetric memory a rank, enough for every layout that will be used.
  RankGroup(std::int32_t ranks, std::int32_t devices, std::int64_t bytes) : devices_(devices) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      use(rank);
      for (std::int32_t peer = 0; peer < devices; ++peer) {
        static bool enabled[16][16];  // asking twice is an error, which a memory checker reports
        bool& done = enabled[rank % devices][peer];
        if (peer != rank % devices && !done)
          EXPECT_EQ(cudaSuccess, cudaDeviceEnablePeerAccess(peer, 0));
        done = true;
      }
      memory_.push_back(std::make_unique<DeviceArray<std::uint8_t>>(bytes));
      workspace_.push_back(std::make_unique<DeviceArray<std::uint8_t>>(1 << 20));
      records_.push_back(std::make_unique<DeviceArray<sync::WaitRecord>>(1024));
      memory_.back()->set_bytes(0);
      workspace_.back()->set_bytes(0);
      records_.back()->set_bytes(0);
      symmetric_.push_back(memory_.back()->get());
      streams_.emplace_back();
      EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
    }
    synchronize();
  }
  ~RankGroup() {
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      use(rank);
      cudaStreamDestroy(streams_[static_cast<std::size_t>(rank)]);
    }
    cudaSetDevice(0);
  }

  std::int32_t ranks() const { return static_cast<std::int32_t>(symmetric_.size()); }
  std::int32_t devices() const { return devices_; }
  void use(std::int32_t rank) const { cudaSetDevice(rank % devices_); }
  cudaStream_t stream(std::int32_t rank) const { return streams_[static_cast<std::size_t>(rank)]; }
  std::uint8_t* symmetric(std::int32_t rank) const { return symmetric_data(rank); }

  RankMemory output(const layout::UlyssesLayout& layout, std::int32_t rank) {
    RankMemory out;
    out.layout = layout;
    out.rank = rank;
    out.symmetric = symmetric_.data();
    out.workspace = workspace_[static_cast<std::size_t>(rank)]->get();
    out.records = records_[static_cast<std::size_t>(rank)]->get();
    out.sms = sms_;
    if (limit_ns_ > 0) out.limit_ns = limit_ns_;
    return out;
  }

  /// From here on each rank's launches take only its part of the GPU that it shares.
  void share_sms() {
    int sms = 0;
    EXPECT_EQ(cudaSuccess, cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    sms_ = sms / ((ranks() + devices_ - 1) / devices_);
  }
  void set_limit(std::uint64_t ns) { limit_ns_ = ns; }
  std::vector<sync::WaitRecord> records(std::int32_t rank) const {
    std::vector<sync::WaitRecord> out(1024);
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(out.data(), records_[static_cast<std::size_t>(rank)]->get(),
                         out.size() * sizeof(sync::WaitRecord), cudaMemcpyDeviceToHost));
    return out;
  }

  void synchronize() const {
    for (std::int32_t device = 0; device < devices_; ++device) {
      cudaSetDevice(device);
      EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    }
  }

  /// No wait of this group passed its limit.
  void expect_no_stop(const layout::UlyssesLayout& layout) const {
    for (std::int32_t rank = 0; rank < ranks(); ++rank) {
      std::uint64_t stop = 0;
      EXPECT_EQ(cudaSuccess, cudaMemcpy(&stop, layout.stop_word(symmetric_data(rank)), sizeof stop,
                                        cudaMemcpyDeviceToHost));
      EXPECT_EQ(0u, stop) << "rank " << rank;
    }
  }

 private:
  std::uint8_t* symmetric_data(std::int32_t rank) const {
    return static_cast<std::uint8_t*>(symmetric_[static_cast<std::size_t>(rank)]);
  }

  std::int32_t devices_;
  int sms_ = 0;
  std::uint64_t limit_ns_ = 0;
  std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> memory_, workspace_;
  std::vector<std::unique_ptr<DeviceArray<sync::WaitRecord>>> records_;
  std::vector<void*> symmetric_;
  std::vector<cudaStream_t> streams_;
};

/// Counts rows of 16-byte units that differ between what arrived and what was computed.
__global__ void count_different(const uint4* got, const uint4* wanted, std::int64_t got_row,
                                std::int64_t got_head, std::int64_t wanted_row,
                                std::int64_t wanted_head, int units, unsigned long long* out) {
  const uint4* const a = got + blockIdx.x * got_row + blockIdx.y * got_head;
  const uint4* const b = wanted + blockIdx.x * wanted_row + blockIdx.y * wanted_head;
  for (int i = static_cast<int>(threadIdx.x); i < units; i += static_cast<int>(blockDim.x)) {
    const uint4 x = a[i], y = b[i];
    if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w) atomicAdd(out, 1ull);
  }
}

}  // namespace xstage::ulysses::test
