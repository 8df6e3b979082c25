#include "cuda/ulysses/peer_access.hpp"

#include <cuda_runtime.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/probe/check.cuh"

namespace xstage::ulysses {

Result<bool> reach_peer(int gpu, int peer) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> reached;
  const std::lock_guard lock(mutex);
  if (reached.count({gpu, peer}) != 0) return true;
  int can = 0;
  XSTAGE_CUDA_TRY(cudaDeviceCanAccessPeer(&can, gpu, peer));
  if (can == 0)
    return Error{ErrorKind::kUnsupported, "two GPUs cannot reach each other's memory", "pair",
                 std::to_string(gpu) + " -> " + std::to_string(peer),
                 "a pair with peer access (xstage doctor says why not)"};
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();  // by somebody else in this process
  else if (enabled != cudaSuccess)
    return probe::cuda_error(enabled, "cudaDeviceEnablePeerAccess");
  reached.insert({gpu, peer});
  return true;
}

}  // namespace xstage::ulysses
